#include "worker/engine/math_backend.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "worker/kernels/matrix_product.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fedshard::engine {
namespace {

// An AMD processor with AVX-512.
bool OneDnnIsFaster() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return false;
  char vendor[13] = {};
  std::memcpy(vendor, &b, 4);
  std::memcpy(vendor + 4, &d, 4);
  std::memcpy(vendor + 8, &c, 4);
  if (std::strcmp(vendor, "AuthenticAMD") != 0) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return (b >> 16 & 1) != 0;
#else
  return false;
#endif
}

// Largest error of a product relative to its largest element: about 1e-6 in fp32, 2e-3 with
// bfloat16 inputs.
double ProductError() {
  const int64_t size = 256;
  const at::Tensor ramp = at::arange(size * size, at::kDouble).view({size, size});
  const at::Tensor a = (ramp * 0.7).sin();
  const at::Tensor b = (ramp * 1.3).cos();
  const at::Tensor rounded_a = a.to(at::kFloat);
  const at::Tensor rounded_b = b.to(at::kFloat);
  const at::Tensor exact = rounded_a.to(at::kDouble).mm(rounded_b.to(at::kDouble));
  const at::Tensor product = kernels::TimesTransposed(rounded_a, rounded_b.t());
  const at::Tensor error = product.to(at::kDouble).sub(exact).abs().max();
  return error.item<double>() / exact.abs().max().item<double>();
}

constexpr double kLargestError = 2e-5;

std::string Select() {
  const char* wish = std::getenv("FEDSHARD_GEMM");
  const std::string demanded = wish == nullptr ? "" : wish;
  if (!demanded.empty() && demanded != "mkl" && demanded != "onednn") {
    throw std::runtime_error("FEDSHARD_GEMM must be mkl or onednn, is " + demanded);
  }
  const at::NoGradGuard no_grad;
  if (demanded == "mkl" || (demanded.empty() && !OneDnnIsFaster())) {
    return demanded.empty() ? "mkl (default)" : "mkl (FEDSHARD_GEMM)";
  }
  if (kernels::HasOneDnn()) {
    kernels::SetMatrixLibrary(kernels::MatrixLibrary::kOneDnn);
    if (ProductError() <= kLargestError) {
      return demanded.empty() ? "onednn (AMD with AVX-512, checked exact)"
                              : "onednn (FEDSHARD_GEMM)";
    }
    kernels::SetMatrixLibrary(kernels::MatrixLibrary::kDefault);
  }
  if (!demanded.empty()) {
    throw std::runtime_error("FEDSHARD_GEMM=onednn: no exact fp32 products from it here");
  }
  return "mkl (onednn missing or not exact)";
}

}  // namespace

const std::string& SelectMathBackend() {
  static const std::string choice = Select();
  return choice;
}

}  // namespace fedshard::engine
