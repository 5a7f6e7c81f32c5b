#include "worker/kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/device_kernels.h"
#include "worker/kernels/row_access.h"

namespace fedshard::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows, or columns, per task: enough work to be worth a thread.
constexpr int64_t kGrain = 64;

template <typename T>
void Forward(const at::Tensor& x, const at::Tensor& weight, double eps, float* scales,
             at::Tensor& y) {
  const int64_t rows = x.size(0);
  const int64_t size = x.size(1);
  const T* x_data = x.const_data_ptr<T>();
  const at::Tensor weights = weight.to(at::kFloat);
  const float* weight_data = weights.const_data_ptr<float>();
  T* y_data = y.data_ptr<T>();
  at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* to = y_data + row * size;
      float* space = RowSpace(to, size, 1);
      scales[row] =
          RmsNormRow(ReadRow(x_data + row * size, size, 0), weight_data, size, eps, space);
      StoreRow(space, to, size);
    }
  });
}

// grad_weight is fp32.
template <typename T>
void Backward(const at::Tensor& x, const at::Tensor& weight, const float* scales,
              const at::Tensor& grad_y, at::Tensor& grad_x, at::Tensor& grad_weight) {
  const int64_t rows = x.size(0);
  const int64_t size = x.size(1);
  const T* x_data = x.const_data_ptr<T>();
  const at::Tensor weights = weight.to(at::kFloat);
  const float* weight_data = weights.const_data_ptr<float>();
  const T* grad_y_data = grad_y.const_data_ptr<T>();
  T* grad_x_data = grad_x.data_ptr<T>();
  float* grad_weight_data = grad_weight.data_ptr<float>();
  at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * size;
      float* space = RowSpace(grad_x_data + at, size, 2);
      RmsNormRowGradient(ReadRow(x_data + at, size, 0), weight_data,
                         ReadRow(grad_y_data + at, size, 1), scales[row], size, space);
      StoreRow(space, grad_x_data + at, size);
    }
  });
  // By columns, so that every element sums its rows in order whatever the number of threads.
  at::parallel_for(0, size, kGrain * 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * size + begin;
      RmsNormRowWeightGradient(ReadRow(x_data + at, end - begin, 0),
                               ReadRow(grad_y_data + at, end - begin, 1), scales[row], end - begin,
                               grad_weight_data + begin);
    }
  });
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const at::Tensor scales = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    at::Tensor y = at::empty_like(x);
    ByElementType(x, [&](auto element) {
      Forward<decltype(element)>(x, weight, eps, scales.data_ptr<float>(), y);
    });
    context->save_for_backward({x, weight, scales});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor grad_y = grads[0].contiguous();
    at::Tensor grad_x = at::empty_like(x);
    at::Tensor grad_weight = at::zeros({x.size(1)}, x.options().dtype(at::kFloat));
    ByElementType(x, [&](auto element) {
      Backward<decltype(element)>(x, saved[1], saved[2].const_data_ptr<float>(), grad_y, grad_x,
                                  grad_weight);
    });
    return {grad_x, grad_weight.to(x.scalar_type()), at::Tensor()};
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
