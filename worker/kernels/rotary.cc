#include "worker/kernels/rotary.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/device_kernels.h"
#include "worker/kernels/row_access.h"

namespace fedshard::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowsPerTask = 64;

// Shapes of the split, and the angles.
struct Split {
  int64_t rows, length, query_heads, key_heads, head_dim;
  const float* cosine;
  const float* sine;
  int64_t width() const { return (query_heads + 2 * key_heads) * head_dim; }
};

template <typename T>
void Forward(const Split& split, const T* in, T* q, T* k, T* v) {
  const int64_t half = split.head_dim / 2;
  at::parallel_for(0, split.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* c = split.cosine + row % split.length * half;
      const float* s = split.sine + row % split.length * half;
      const T* from = in + row * split.width();
      const auto rotate = [&](T* to, int64_t heads) {
        for (int64_t head = 0; head < heads; ++head) {
          float* space = RowSpace(to, split.head_dim, 1);
          RotateHead(ReadRow(from, split.head_dim, 0), c, s, half, space);
          StoreRow(space, to, split.head_dim);
          from += split.head_dim;
          to += split.head_dim;
        }
      };
      rotate(q + row * split.query_heads * split.head_dim, split.query_heads);
      rotate(k + row * split.key_heads * split.head_dim, split.key_heads);
      const int64_t values = split.key_heads * split.head_dim;
      std::copy_n(from, values, v + row * values);
    }
  });
}

template <typename T>
void Backward(const Split& split, const T* q, const T* k, const T* v, T* out) {
  const int64_t half = split.head_dim / 2;
  at::parallel_for(0, split.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* c = split.cosine + row % split.length * half;
      const float* s = split.sine + row % split.length * half;
      T* to = out + row * split.width();
      const auto rotate = [&](const T* from, int64_t heads) {
        for (int64_t head = 0; head < heads; ++head) {
          float* space = RowSpace(to, split.head_dim, 1);
          RotateHeadBack(ReadRow(from, split.head_dim, 0), c, s, half, space);
          StoreRow(space, to, split.head_dim);
          from += split.head_dim;
          to += split.head_dim;
        }
      };
      rotate(q + row * split.query_heads * split.head_dim, split.query_heads);
      rotate(k + row * split.key_heads * split.head_dim, split.key_heads);
      const int64_t values = split.key_heads * split.head_dim;
      std::copy_n(v + row * values, values, to);
    }
  });
}

class RotaryQkvFunction : public torch::autograd::Function<RotaryQkvFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv,
                               const at::Tensor& cosine, const at::Tensor& sine, int64_t batch,
                               int64_t query_heads, int64_t key_heads) {
    const int64_t length = qkv.size(0) / batch;
    const int64_t head_dim = qkv.size(1) / (query_heads + 2 * key_heads);
    at::Tensor q = at::empty({batch, length, query_heads, head_dim}, qkv.options());
    at::Tensor k = at::empty({batch, length, key_heads, head_dim}, qkv.options());
    at::Tensor v = at::empty_like(k);
    const Split split{qkv.size(0),
                      length,
                      query_heads,
                      key_heads,
                      head_dim,
                      cosine.const_data_ptr<float>(),
                      sine.const_data_ptr<float>()};
    ByElementType(qkv, [&](auto element) {
      using T = decltype(element);
      Forward(split, qkv.const_data_ptr<T>(), q.data_ptr<T>(), k.data_ptr<T>(), v.data_ptr<T>());
    });
    context->save_for_backward({cosine, sine});
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor q = grads[0].contiguous();
    const at::Tensor k = grads[1].contiguous();
    const at::Tensor v = grads[2].contiguous();
    const Split split{q.size(0) * q.size(1),
                      q.size(1),
                      q.size(2),
                      k.size(2),
                      q.size(3),
                      saved[0].const_data_ptr<float>(),
                      saved[1].const_data_ptr<float>()};
    at::Tensor grad = at::empty({split.rows, split.width()}, q.options());
    ByElementType(q, [&](auto element) {
      using T = decltype(element);
      Backward(split, q.const_data_ptr<T>(), k.const_data_ptr<T>(), v.const_data_ptr<T>(),
               grad.data_ptr<T>());
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
