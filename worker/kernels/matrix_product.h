// Matrix products for the model's weights, in fp32 by the library chosen for this machine, or in
// bf16 (fp32 sums inside, one rounding at the end). Thread-safe, except that the choice is made
// before the first product.
//
// On some CPUs one library runs at half the speed of the other (see engine/math_backend.h). The
// choice concerns these products alone: attention makes many tiny products, where the set-up cost
// of oneDNN is larger than its gain, and LibTorch's own switch is global.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fedshard::kernels {

enum class MatrixLibrary {
  kDefault,  // What LibTorch's mm uses: MKL on CPU, cuBLAS on CUDA.
  kOneDnn,   // CPU only; products elsewhere stay with the default.
};

// Whether this LibTorch has oneDNN.
bool HasOneDnn();
void SetMatrixLibrary(MatrixLibrary library);

// a [N, K] times the transpose of b [M, K]: [N, M]. Either may be a transposed view. Without
// autograd. The result is in `space` [N, M] when that is given and the library can write to it.
at::Tensor TimesTransposed(const at::Tensor& a, const at::Tensor& b, const at::Tensor& space = {});

// out [N, M] = or += a [N, K] times the transpose of b [M, K]. `out` may be fp32 for bf16 factors.
void StoreTimesTransposed(const at::Tensor& a, const at::Tensor& b, at::Tensor out);
void AddTimesTransposed(const at::Tensor& a, const at::Tensor& b, at::Tensor out);

// x [N, K] times the transpose of weight [M, K], plus `residual` [N, M] when that is given.
// Differentiable.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& residual = std::nullopt);

}  // namespace fedshard::kernels
