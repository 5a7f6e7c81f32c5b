// The one order in which the project adds up what several ranks or micro-batches contribute.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fedshard::collective {

// out = sum of `pieces` in the pairwise tree over their indices: neighbours at equal depth are
// added first, as a binary counter carries, and what is left over is folded from the right: 3 ->
// (0+1)+2, 4 -> (0+1)+(2+3), 7 -> ((0+1)+(2+3))+((4+5)+6). All pieces but pieces[keep] are
// overwritten. `out` may be pieces[keep].
void TreeSum(std::vector<at::Tensor> pieces, size_t keep, at::Tensor& out);

}  // namespace fedshard::collective
