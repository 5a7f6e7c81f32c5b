// The gated activation of the feed-forward part; on CPU by own loops, elsewhere by
// device_kernels.h. Stateless.
#pragma once

#include <ATen/core/Tensor.h>

namespace fedshard::kernels {

// silu(gate) * up, [N, F], of gate_up [N, 2F] with the gate in the first F columns; fp32,
// contiguous. Differentiable.
at::Tensor Swiglu(const at::Tensor& gate_up);

}  // namespace fedshard::kernels
