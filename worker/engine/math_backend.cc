#include "worker/engine/math_backend.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fedshard::engine {
namespace {

struct CpuFacts {
  bool amd = false;
  bool avx512 = false;
  bool amx = false;
};

CpuFacts ReadCpu() {
  CpuFacts facts;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d)) {
    char vendor[13] = {};
    std::memcpy(vendor, &b, 4);
    std::memcpy(vendor + 4, &d, 4);
    std::memcpy(vendor + 8, &c, 4);
    facts.amd = std::strcmp(vendor, "AuthenticAMD") == 0;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    facts.avx512 = (b >> 16 & 1) != 0;
    facts.amx = (d >> 22 & 1) != 0 || (d >> 24 & 1) != 0;  // AMX-BF16, AMX-TILE.
  }
#endif
  return facts;
}

void UseOneDnn(bool on) {
  at::globalContext().setFloat32Precision(
      at::Float32Backend::MKLDNN, at::Float32Op::MATMUL,
      on ? at::Float32Precision::BF16 : at::Float32Precision::IEEE);
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
  const at::Tensor error = rounded_a.mm(rounded_b).to(at::kDouble).sub(exact).abs().max();
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
  const CpuFacts cpu = ReadCpu();
  const bool rule = cpu.amd && cpu.avx512 && !cpu.amx && at::hasMKLDNN();
  if (demanded == "mkl" || (demanded.empty() && !rule)) {
    UseOneDnn(false);
    return demanded.empty() ? "mkl (default)" : "mkl (FEDSHARD_GEMM)";
  }
  UseOneDnn(true);
  if (ProductError() <= kLargestError) {
    return demanded.empty() ? "onednn (AMD with AVX-512, checked exact)" : "onednn (FEDSHARD_GEMM)";
  }
  UseOneDnn(false);
  if (!demanded.empty()) {
    throw std::runtime_error("FEDSHARD_GEMM=onednn: its fp32 products are not exact on this CPU");
  }
  return "mkl (onednn not exact here)";
}

}  // namespace

const std::string& SelectMathBackend() {
  static const std::string choice = Select();
  return choice;
}

}  // namespace fedshard::engine
