#include "worker/kernels/swiglu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/device_kernels.h"

namespace fedshard::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowsPerTask = 32;

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const int64_t rows = gate_up.size(0);
    const int64_t size = gate_up.size(1) / 2;
    at::Tensor y = at::empty({rows, size}, gate_up.options());
    const float* gate = gate_up.const_data_ptr<float>();
    float* out = y.data_ptr<float>();
    at::parallel_for(0, rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* at = gate + row * 2 * size;
        SwigluRow(at, at + size, size, out + row * size);
      }
    });
    context->save_for_backward({gate_up});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor gate_up = context->get_saved_variables()[0];
    const at::Tensor grad_y = grads[0].contiguous();
    const int64_t rows = gate_up.size(0);
    const int64_t size = gate_up.size(1) / 2;
    at::Tensor grad = at::empty_like(gate_up);
    const float* gate = gate_up.const_data_ptr<float>();
    const float* grad_y_data = grad_y.const_data_ptr<float>();
    float* out = grad.data_ptr<float>();
    at::parallel_for(0, rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* at = gate + row * 2 * size;
        float* to = out + row * 2 * size;
        SwigluRowGradient(at, at + size, grad_y_data + row * size, size, to, to + size);
      }
    });
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
