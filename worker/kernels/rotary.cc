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
  const int64_t queries = split.query_heads * split.head_dim;
  const int64_t keys = split.key_heads * split.head_dim;
  at::parallel_for(0, split.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* c = split.cosine + row % split.length * half;
      const float* s = split.sine + row % split.length * half;
      const T* from = in + row * split.width();
      const float* values = ReadRow(from, queries + keys, 0);
      const auto rotate = [&](const float* x, T* to, int64_t size) {
        float* space = RowSpace(to, size, 1);
        for (int64_t head = 0; head < size; head += split.head_dim) {
          RotateHead(x + head, c, s, half, space + head);
        }
        StoreRow(space, to, size);
      };
      rotate(values, q + row * queries, queries);
      rotate(values + queries, k + row * keys, keys);
      std::copy_n(from + queries + keys, keys, v + row * keys);
    }
  });
}

template <typename T>
void Backward(const Split& split, const T* q, const T* k, const T* v, T* out) {
  const int64_t half = split.head_dim / 2;
  const int64_t queries = split.query_heads * split.head_dim;
  const int64_t keys = split.key_heads * split.head_dim;
  at::parallel_for(0, split.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* c = split.cosine + row % split.length * half;
      const float* s = split.sine + row % split.length * half;
      T* to = out + row * split.width();
      float* space = RowSpace(to, queries + keys, 1);
      const auto rotate = [&](const T* from, float* y, int64_t size) {
        const float* x = ReadRow(from, size, 0);
        for (int64_t head = 0; head < size; head += split.head_dim) {
          RotateHeadBack(x + head, c, s, half, y + head);
        }
      };
      rotate(q + row * queries, space, queries);
      rotate(k + row * keys, space + queries, keys);
      StoreRow(space, to, queries + keys);
      std::copy_n(v + row * keys, keys, to + queries + keys);
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
