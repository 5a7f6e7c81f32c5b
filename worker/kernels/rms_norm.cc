#include "worker/kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/device_kernels.h"

namespace fedshard::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows, or columns, per task: enough work to be worth a thread.
constexpr int64_t kGrain = 64;

at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight, double eps, float* scales) {
  const int64_t rows = x.size(0);
  const int64_t size = x.size(1);
  at::Tensor y = at::empty_like(x);
  const float* x_data = x.const_data_ptr<float>();
  const float* weight_data = weight.const_data_ptr<float>();
  float* y_data = y.data_ptr<float>();
  at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      scales[row] = RmsNormRow(x_data + row * size, weight_data, size, eps, y_data + row * size);
    }
  });
  return y;
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const at::Tensor scales = at::empty({x.size(0)}, x.options());
    at::Tensor y = Forward(x, weight, eps, scales.data_ptr<float>());
    context->save_for_backward({x, weight, scales});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor grad_y = grads[0].contiguous();
    const int64_t rows = x.size(0);
    const int64_t size = x.size(1);
    at::Tensor grad_x = at::empty_like(x);
    at::Tensor grad_weight = at::zeros({size}, x.options());
    const float* x_data = x.const_data_ptr<float>();
    const float* weight_data = saved[1].const_data_ptr<float>();
    const float* scales = saved[2].const_data_ptr<float>();
    const float* grad_y_data = grad_y.const_data_ptr<float>();
    float* grad_x_data = grad_x.data_ptr<float>();
    float* grad_weight_data = grad_weight.data_ptr<float>();
    at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * size;
        RmsNormRowGradient(x_data + at, weight_data, grad_y_data + at, scales[row], size,
                           grad_x_data + at);
      }
    });
    // By columns, so that every element sums its rows in order whatever the number of threads.
    at::parallel_for(0, size, kGrain * 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = row * size + begin;
        RmsNormRowWeightGradient(x_data + at, grad_y_data + at, scales[row], end - begin,
                                 grad_weight_data + begin);
      }
    });
    return {grad_x, grad_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!x.is_cpu()) return DeviceRmsNorm(x, weight, eps);
  TORCH_CHECK(x.is_contiguous() && x.dim() == 2 && weight.is_contiguous(),
              "RmsNorm needs contiguous x [N, D] and weight [D]");
  return RmsNormFunction::apply(x, weight, eps);
}

std::pair<at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                             const at::Tensor& weight, double eps) {
  if (!x.is_cpu()) return DeviceAddRmsNorm(x, residual, weight, eps);
  const at::Tensor sum = x + residual;
  return {sum, RmsNorm(sum, weight, eps)};
}

}  // namespace fedshard::kernels
