// Output projection and cross-entropy in one, some tokens at a time: the logits of all tokens never
// exist at once, and the gradients come out directly, without autograd. Stateless. All tensors on
// one device; fp32, or hidden, weight, logits and grad_hidden bf16: softmax, loss and the sums of
// grad_weight are fp32 always.
//
// Shapes: hidden [N, D], weight [V, D], targets int64 [N] in [0, V), logits [C, V] scratch (C =
// tokens of a chunk). Returns the sum over tokens of -log softmax(hidden weight^T)[target], in
// nats, as a double tensor [] on the device.
#pragma once

#include <ATen/core/Tensor.h>

namespace fedshard::kernels {

at::Tensor ChunkedCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& targets, const at::Tensor& logits);

// Also writes scale times the gradients: grad_hidden [N, D], grad_weight [V, D] (both overwritten).
at::Tensor ChunkedCrossEntropyWithGradients(const at::Tensor& hidden, const at::Tensor& weight,
                                            const at::Tensor& targets, double scale,
                                            const at::Tensor& logits, at::Tensor grad_hidden,
                                            at::Tensor grad_weight);

}  // namespace fedshard::kernels
