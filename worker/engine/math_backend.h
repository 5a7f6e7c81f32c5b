// Chooses, once per process, the library behind fp32 matrix products on CPU. Thread-safe.
#pragma once

#include <string>

namespace fedshard::engine {

// Applies the choice to kernels/matrix_product.h on first call and returns it, for logs and
// benchmarks: "mkl" or "onednn", with the reason.
//
// On AMD CPUs with AVX-512 MKL runs at half the speed of oneDNN. So the rule is: oneDNN there, if a
// product checked against double precision is as exact as fp32 allows; MKL everywhere else. The
// rule reads the CPU alone, so that all processes of a machine choose alike. Products are never
// made in reduced precision.
//
// FEDSHARD_GEMM=mkl|onednn in the environment overrides the rule. Throws std::runtime_error on
// another value, or when onednn is demanded and cannot be had.
const std::string& SelectMathBackend();

}  // namespace fedshard::engine
