// What the CUDA kernels work on: plain pointers and sizes. All tensors are dense and row-major;
// `Element` is the type of those given as void*. Shapes: the header of each function in
// worker/kernels. Plain C++: the launchers, the kernels and the tests on the CPU share it.
#pragma once

#include <cstdint>

namespace fedshard::kernels::cuda {

enum class Element { kFloat, kBf16 };

struct RmsNormArguments {
  const void* x;         // [rows, size]
  const void* residual;  // [rows, size] to be added to x first, or null.
  const void* weight;    // [size]
  void* sum;             // [rows, size]: x + residual. Null without residual.
  void* y;               // [rows, size]
  float* scales;         // [rows]
  int64_t rows;
  int64_t size;
  float eps;
};

struct RmsNormGradientArguments {
  const void* x;         // [rows, size]: what was normalised.
  const void* weight;    // [size]
  const void* grad_y;    // [rows, size]
  const void* grad_sum;  // [rows, size] to be added to grad_x, or null.
  const float* scales;   // [rows]
  void* grad_x;          // [rows, size]
  float* partials;       // [RmsNormPartials(rows), size], scratch.
  void* grad_weight;     // [size]
  int64_t rows;
  int64_t size;
};

struct RotaryArguments {
  void* qkv;            // [rows, (query_heads + 2 * key_heads) * head_dim]
  const float* cosine;  // [>= length, head_dim / 2]
  const float* sine;
  void* q;  // [rows, query_heads * head_dim]
  void* k;  // [rows, key_heads * head_dim]
  void* v;
  int64_t rows;
  int64_t length;  // Row i has position i % length.
  int64_t query_heads;
  int64_t key_heads;
  int64_t head_dim;
};

struct SwigluArguments {
  const void* gate_up;  // [rows, 2 * size]
  const void* grad_y;   // [rows, size]; null: forward.
  void* out;            // [rows, size]; backward: the gradient of gate_up, [rows, 2 * size].
  int64_t rows;
  int64_t size;
};

struct CrossEntropyArguments {
  void* logits;            // [rows, vocabulary]
  const int64_t* targets;  // [rows]
  double* losses;          // [rows]
  int64_t rows;
  int64_t vocabulary;
  bool gradient;  // Logits become scale times their gradient.
  float scale;
};

}  // namespace fedshard::kernels::cuda
