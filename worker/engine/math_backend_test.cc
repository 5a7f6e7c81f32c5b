// Proves that the chosen path of fp32 products is as exact as fp32 allows, for shapes around a
// model's, and that the choice has a name.
#include "worker/engine/math_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/kernels/matrix_product.h"

namespace fedshard::engine {
namespace {

TEST(MathBackend, ProductsAreTrueFp32) {
  const std::string& choice = SelectMathBackend();
  EXPECT_TRUE(choice.starts_with("mkl") || choice.starts_with("onednn")) << choice;
  at::manual_seed(4);
  struct Shape {
    int64_t m, k, n;
  };
  for (const Shape& s : {Shape{256, 192, 512}, Shape{512, 256, 192}, Shape{33, 100, 17}}) {
    const at::Tensor a = at::randn({s.m, s.k});
    const at::Tensor b = at::randn({s.n, s.k});
    const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble).t());
    const double error =
        (kernels::TimesTransposed(a, b).to(at::kDouble) - exact).abs().max().item<double>();
    EXPECT_LT(error / exact.abs().max().item<double>(), 5e-6) << choice;
  }
}

}  // namespace
}  // namespace fedshard::engine
