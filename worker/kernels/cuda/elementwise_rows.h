// The rotary split and the gated activation of one row by the lanes of a block, forward and
// backward, computed in fp32. N elements are moved at once: head_dim / 2, or the row's size, must
// be a multiple of N, and rows aligned for it. See rotary.h and swiglu.h for the shapes.
#pragma once

#include "worker/kernels/cuda/lanes.h"

namespace fedshard::kernels::cuda {

struct HeadCounts {
  int64_t query = 0;
  int64_t key = 0;
  int64_t half = 0;  // Of a head's elements.
};

// Where element `at` of head `head` (queries, keys, values) of a row lies in q, k or v.
template <typename T>
FEDSHARD_KERNEL_CODE T* HeadPart(const HeadCounts& heads, int64_t head, int64_t at, T* q, T* k,
                                 T* v) {
  const int64_t size = 2 * heads.half;
  if (head < heads.query) return q + head * size + at;
  if (head < heads.query + heads.key) return k + (head - heads.query) * size + at;
  return v + (head - heads.query - heads.key) * size + at;
}

// Reads the joint row qkv and writes the row's part of q, k and v; cosine, sine: of its position.
// kBack: the other way round, gradients of the parts to the gradient of the joint row.
template <bool kBack, int N, typename Threads, typename T>
FEDSHARD_KERNEL_CODE void RotaryRow(Threads& threads, T* qkv, const float* cosine,
                                    const float* sine, const HeadCounts& heads, T* q, T* k, T* v) {
  const int64_t packs = heads.half / N;
  const int64_t items = (heads.query + 2 * heads.key) * packs;
  for (int64_t item = threads.lane(); item < items; item += threads.lanes()) {
    const int64_t head = item / packs;
    const int64_t at = item % packs * N;
    T* joint = qkv + head * 2 * heads.half + at;
    T* part = HeadPart(heads, head, at, q, k, v);
    const T* from = kBack ? part : joint;
    T* to = kBack ? joint : part;
    float low[N], high[N];
    Load<N>(from, low);
    Load<N>(from + heads.half, high);
    if (head < heads.query + heads.key) {
      float c[N], s[N];
      Load<N>(cosine + at, c);
      Load<N>(sine + at, s);
      for (int j = 0; j < N; ++j) {
        const float turn = kBack ? -s[j] : s[j];
        const float first = low[j];
        low[j] = first * c[j] - high[j] * turn;
        high[j] = high[j] * c[j] + first * turn;
      }
    }
    Store<N>(low, to);
    Store<N>(high, to + heads.half);
  }
}

FEDSHARD_KERNEL_CODE float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// y = silu(gate) * up.
template <int N, typename Threads, typename T>
FEDSHARD_KERNEL_CODE void SwigluRow(Threads& threads, const T* gate, const T* up, int64_t size,
                                    T* y) {
  const int64_t stride = static_cast<int64_t>(threads.lanes()) * N;
  for (int64_t i = static_cast<int64_t>(threads.lane()) * N; i < size; i += stride) {
    float g[N], u[N];
    Load<N>(gate + i, g);
    Load<N>(up + i, u);
    for (int j = 0; j < N; ++j) g[j] = g[j] * Sigmoid(g[j]) * u[j];
    Store<N>(g, y + i);
  }
}

template <int N, typename Threads, typename T>
FEDSHARD_KERNEL_CODE void SwigluRowGradient(Threads& threads, const T* gate, const T* up,
                                            const T* grad_y, int64_t size, T* grad_gate,
                                            T* grad_up) {
  const int64_t stride = static_cast<int64_t>(threads.lanes()) * N;
  for (int64_t i = static_cast<int64_t>(threads.lane()) * N; i < size; i += stride) {
    float g[N], u[N], grads[N];
    Load<N>(gate + i, g);
    Load<N>(up + i, u);
    Load<N>(grad_y + i, grads);
    for (int j = 0; j < N; ++j) {
      const float s = Sigmoid(g[j]);
      const float silu = g[j] * s;
      g[j] = grads[j] * u[j] * (s + silu * (1.0f - s));
      u[j] = grads[j] * silu;
    }
    Store<N>(g, grad_gate + i);
    Store<N>(u, grad_up + i);
  }
}

}  // namespace fedshard::kernels::cuda
