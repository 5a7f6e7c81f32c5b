#include "worker/kernels/rotary.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/device_kernels.h"

namespace fedshard::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowsPerTask = 64;

class RotaryQkvFunction : public torch::autograd::Function<RotaryQkvFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv,
                               const at::Tensor& cosine, const at::Tensor& sine, int64_t batch,
                               int64_t query_heads, int64_t key_heads) {
    const int64_t rows = qkv.size(0);
    const int64_t length = rows / batch;
    const int64_t head_dim = qkv.size(1) / (query_heads + 2 * key_heads);
    const int64_t half = head_dim / 2;
    at::Tensor q = at::empty({batch, length, query_heads, head_dim}, qkv.options());
    at::Tensor k = at::empty({batch, length, key_heads, head_dim}, qkv.options());
    at::Tensor v = at::empty_like(k);
    const float* in = qkv.const_data_ptr<float>();
    const float* cos = cosine.const_data_ptr<float>();
    const float* sin = sine.const_data_ptr<float>();
    float* q_out = q.data_ptr<float>();
    float* k_out = k.data_ptr<float>();
    float* v_out = v.data_ptr<float>();
    at::parallel_for(0, rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* from = in + row * qkv.size(1);
        const float* c = cos + row % length * half;
        const float* s = sin + row % length * half;
        for (int64_t head = 0; head < query_heads; ++head, from += head_dim) {
          RotateHead(from, c, s, half, q_out + (row * query_heads + head) * head_dim);
        }
        for (int64_t head = 0; head < key_heads; ++head, from += head_dim) {
          RotateHead(from, c, s, half, k_out + (row * key_heads + head) * head_dim);
        }
        std::copy_n(from, key_heads * head_dim, v_out + row * key_heads * head_dim);
      }
    });
    context->save_for_backward({cosine, sine});
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad_q = grads[0].contiguous();
    const at::Tensor grad_k = grads[1].contiguous();
    const at::Tensor grad_v = grads[2].contiguous();
    const int64_t length = grad_q.size(1);
    const int64_t rows = grad_q.size(0) * length;
    const int64_t query_heads = grad_q.size(2);
    const int64_t key_heads = grad_k.size(2);
    const int64_t head_dim = grad_q.size(3);
    const int64_t half = head_dim / 2;
    const int64_t width = (query_heads + 2 * key_heads) * head_dim;
    at::Tensor grad = at::empty({rows, width}, grad_q.options());
    const float* cos = saved[0].const_data_ptr<float>();
    const float* sin = saved[1].const_data_ptr<float>();
    const float* q_in = grad_q.const_data_ptr<float>();
    const float* k_in = grad_k.const_data_ptr<float>();
    const float* v_in = grad_v.const_data_ptr<float>();
    float* out = grad.data_ptr<float>();
    at::parallel_for(0, rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* to = out + row * width;
        const float* c = cos + row % length * half;
        const float* s = sin + row % length * half;
        for (int64_t head = 0; head < query_heads; ++head, to += head_dim) {
          RotateHeadBack(q_in + (row * query_heads + head) * head_dim, c, s, half, to);
        }
        for (int64_t head = 0; head < key_heads; ++head, to += head_dim) {
          RotateHeadBack(k_in + (row * key_heads + head) * head_dim, c, s, half, to);
        }
        std::copy_n(v_in + row * key_heads * head_dim, key_heads * head_dim, to);
      }
    });
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::array<at::Tensor, 3> RotaryQkv(const at::Tensor& qkv, const at::Tensor& cosine,
                                    const at::Tensor& sine, int64_t batch, int64_t query_heads,
                                    int64_t key_heads) {
  if (!qkv.is_cpu()) {
    return DeviceRotaryQkv(qkv, cosine, sine, batch, query_heads, key_heads);
  }
  TORCH_CHECK(qkv.is_contiguous() && cosine.is_contiguous() && sine.is_contiguous(),
              "RotaryQkv needs contiguous tensors");
  variable_list out = RotaryQkvFunction::apply(qkv, cosine, sine, batch, query_heads, key_heads);
  return {out[0], out[1], out[2]};
}

}  // namespace fedshard::kernels
