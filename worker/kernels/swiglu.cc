#include "worker/kernels/swiglu.h"

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

constexpr int64_t kRowsPerTask = 32;

template <typename T>
void Forward(const at::Tensor& gate_up, at::Tensor& y) {
  const int64_t size = y.size(1);
  const T* in = gate_up.const_data_ptr<T>();
  T* out = y.data_ptr<T>();
  at::parallel_for(0, y.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = ReadRow(in + row * 2 * size, 2 * size, 0);
      float* space = RowSpace(out + row * size, size, 1);
      SwigluRow(gate, gate + size, size, space);
      StoreRow(space, out + row * size, size);
    }
  });
}

template <typename T>
void Backward(const at::Tensor& gate_up, const at::Tensor& grad_y, at::Tensor& grad) {
  const int64_t size = grad_y.size(1);
  const T* in = gate_up.const_data_ptr<T>();
  const T* grad_y_data = grad_y.const_data_ptr<T>();
  T* out = grad.data_ptr<T>();
  at::parallel_for(0, grad_y.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = ReadRow(in + row * 2 * size, 2 * size, 0);
      T* to = out + row * 2 * size;
      float* space = RowSpace(to, 2 * size, 1);
      SwigluRowGradient(gate, gate + size, ReadRow(grad_y_data + row * size, size, 2), size, space,
                        space + size);
      StoreRow(space, to, 2 * size);
    }
  });
}

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    at::Tensor y = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    ByElementType(gate_up, [&](auto element) { Forward<decltype(element)>(gate_up, y); });
    context->save_for_backward({gate_up});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor gate_up = context->get_saved_variables()[0];
    const at::Tensor grad_y = grads[0].contiguous();
    at::Tensor grad = at::empty_like(gate_up);
    ByElementType(gate_up,
                  [&](auto element) { Backward<decltype(element)>(gate_up, grad_y, grad); });
    return {grad};
  }
};

}  // namespace

at::Tensor Swiglu(const at::Tensor& gate_up) {
  if (!gate_up.is_cpu()) return DeviceSwiglu(gate_up);
  TORCH_CHECK(gate_up.is_contiguous() && gate_up.dim() == 2 && gate_up.size(1) % 2 == 0,
              "Swiglu needs contiguous gate_up [N, 2F]");
  return SwigluFunction::apply(gate_up);
}

}  // namespace fedshard::kernels
