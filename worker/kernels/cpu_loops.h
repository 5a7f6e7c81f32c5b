// The inner loops of the CPU kernels, over plain pointers. Stateless; every row is computed
// independently and in a fixed order, so results do not depend on how rows are spread over threads.
// Pointers must not overlap unless said so.
#pragma once

#include <cstdint>

namespace fedshard::kernels {

// Softmax cross-entropy of one row of `vocabulary` logits; returns -log softmax[target], in nats.
double CrossEntropyRow(const float* logits, int64_t vocabulary, int64_t target);
// The same; `logits` becomes scale * d loss / d logits.
double CrossEntropyRowWithGradient(float* logits, int64_t vocabulary, int64_t target, float scale);

// y = weight * x * r with r = 1 / sqrt(mean(x^2) + eps); returns r.
float RmsNormRow(const float* x, const float* weight, int64_t size, double eps, float* y);
// Gradient of x for the gradient `grad_y`, given r.
void RmsNormRowGradient(const float* x, const float* weight, const float* grad_y, float r,
                        int64_t size, float* grad_x);
// Adds grad_y * x * r to grad_weight, the row's part of the weight's gradient.
void RmsNormRowWeightGradient(const float* x, const float* grad_y, float r, int64_t size,
                              float* grad_weight);

// y = silu(gate) * up, elementwise.
void SwigluRow(const float* gate, const float* up, int64_t size, float* y);
void SwigluRowGradient(const float* gate, const float* up, const float* grad_y, int64_t size,
                       float* grad_gate, float* grad_up);

// Rotates one head of 2 * half elements, pairs (i, half + i), by the angles given as cosine and
// sine.
void RotateHead(const float* x, const float* cosine, const float* sine, int64_t half, float* y);
// The inverse rotation.
void RotateHeadBack(const float* x, const float* cosine, const float* sine, int64_t half, float* y);

// bf16 numbers are given by their bits. Rounds to the nearest, ties to even; NaN stays NaN.
void Bf16ToFloat(const uint16_t* x, int64_t size, float* y);
void FloatToBf16(const float* x, int64_t size, uint16_t* y);

// AdamW with moments kept in bf16. The update is computed in fp32 from the moments before they are
// rounded.
struct AdamWFactors {
  float keep = 1;         // 1 - learning rate * weight decay.
  float beta1 = 0;        // Of the first moment.
  float beta2 = 0;        // Of the second.
  float step = 0;         // Learning rate / (1 - beta1^t).
  float root_factor = 1;  // 1 / sqrt(1 - beta2^t).
  float eps = 0;
};
void AdamWBf16(const AdamWFactors& factors, const float* gradient, int64_t size, float* parameter,
               uint16_t* first_moment, uint16_t* second_moment);

// y += x.
void AddRow(const float* x, int64_t size, float* y);

// Sum of squares, in double.
double SumOfSquares(const float* x, int64_t size);

}  // namespace fedshard::kernels
