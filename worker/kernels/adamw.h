// AdamW for moments that are kept in bf16. Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/kernels/cpu_loops.h"

namespace fedshard::kernels {

// In place, elementwise over contiguous tensors of one length and device: parameter and gradient
// fp32, moments bf16.
void AdamWBf16(at::Tensor parameter, const at::Tensor& gradient, at::Tensor first_moment,
               at::Tensor second_moment, const AdamWFactors& factors);

}  // namespace fedshard::kernels
