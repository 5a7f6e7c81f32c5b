#include "worker/kernels/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace fedshard::kernels {
namespace {

// A multiple of every vector length, so that elements do not depend on how a range is cut.
constexpr int64_t kElementsPerTask = 65536;

void OnDevice(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& first_moment,
              at::Tensor& second_moment, const AdamWFactors& factors) {
  at::Tensor first = first_moment.to(at::kFloat);
  first.mul_(factors.beta1).add_(gradient, 1.0f - factors.beta1);
  at::Tensor second = second_moment.to(at::kFloat);
  second.mul_(factors.beta2).addcmul_(gradient, gradient, 1.0f - factors.beta2);
  first_moment.copy_(first);
  second_moment.copy_(second);
  second.sqrt_().mul_(factors.root_factor).add_(factors.eps);
  parameter.mul_(factors.keep).addcdiv_(first, second, -factors.step);
}

}  // namespace

void AdamWBf16(at::Tensor parameter, const at::Tensor& gradient, at::Tensor first_moment,
               at::Tensor second_moment, const AdamWFactors& factors) {
  TORCH_CHECK(
      first_moment.scalar_type() == at::kBFloat16 && second_moment.scalar_type() == at::kBFloat16,
      "moments must be bf16");
  if (!parameter.is_cpu()) {
    OnDevice(parameter, gradient, first_moment, second_moment, factors);
    return;
  }
  float* p = parameter.data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  auto* m = reinterpret_cast<uint16_t*>(first_moment.data_ptr<c10::BFloat16>());
  auto* v = reinterpret_cast<uint16_t*>(second_moment.data_ptr<c10::BFloat16>());
  at::parallel_for(0, parameter.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    AdamWBf16(factors, g + begin, end - begin, p + begin, m + begin, v + begin);
  });
}

}  // namespace fedshard::kernels
