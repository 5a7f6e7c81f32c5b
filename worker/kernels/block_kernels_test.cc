// Proves that RMSNorm, SwiGLU, the rotary split and the weight products of either library equal
// their obvious forms in double precision, values and gradients, to fp32 rounding, for sizes with
// and without a vector tail.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "worker/kernels/matrix_product.h"
#include "worker/kernels/references.h"
#include "worker/kernels/rms_norm.h"
#include "worker/kernels/rotary.h"
#include "worker/kernels/swiglu.h"

namespace fedshard::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Kernel = std::function<Tensors(const Tensors&)>;

at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape); }

// Values of `kernel` at `inputs`, then the gradients for fixed random gradients of the outputs.
Tensors ValuesAndGradients(const Kernel& kernel, const Tensors& inputs, at::ScalarType type) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().to(type).requires_grad_(true));
  }
  const Tensors outputs = kernel(leaves);
  Tensors seeds;
  at::manual_seed(3);
  for (const at::Tensor& output : outputs) seeds.push_back(Random(output.sizes()).to(type));
  Tensors all = outputs;
  for (at::Tensor& gradient : torch::autograd::grad(outputs, leaves, seeds)) {
    all.push_back(gradient);
  }
  return all;
}

void ExpectEqual(const Kernel& kernel, const Kernel& reference, const Tensors& inputs) {
  const Tensors got = ValuesAndGradients(kernel, inputs, at::kFloat);
  const Tensors expected = ValuesAndGradients(reference, inputs, at::kDouble);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = expected[i].abs().max().item<double>();
    const double error = (got[i].detach().to(at::kDouble) - expected[i]).abs().max().item<double>();
    EXPECT_LT(error, 2e-6 * scale) << "tensor " << i << " of " << got.size();
  }
}

TEST(RmsNorm, EqualsReference) {
  for (const int64_t size : {8, 64, 200, 257}) {
    SCOPED_TRACE(size);
    at::manual_seed(1);
    ExpectEqual([](const Tensors& in) { return Tensors{RmsNorm(in[0], in[1], 1e-6)}; },
                [](const Tensors& in) { return Tensors{RmsNormReference(in[0], in[1], 1e-6)}; },
                {Random({37, size}), Random({size}) + 1});
  }
}

TEST(AddRmsNorm, EqualsReference) {
  at::manual_seed(1);
  ExpectEqual(
      [](const Tensors& in) {
        const auto [sum, y] = AddRmsNorm(in[0], in[1], in[2], 1e-6);
        return Tensors{sum, y};
      },
      [](const Tensors& in) {
        const at::Tensor sum = in[0] + in[1];
        return Tensors{sum, RmsNormReference(sum, in[2], 1e-6)};
      },
      {Random({37, 65}), Random({37, 65}), Random({65}) + 1});
}

TEST(RmsNorm, LeavesRowsOfZerosAtZero) {
  const at::Tensor y = RmsNorm(at::zeros({2, 16}), at::ones({16}), 1e-6);
  EXPECT_TRUE(at::equal(y, at::zeros({2, 16})));
}

TEST(Swiglu, EqualsReference) {
  for (const int64_t size : {8, 64, 171}) {
    SCOPED_TRACE(size);
    at::manual_seed(1);
    ExpectEqual([](const Tensors& in) { return Tensors{Swiglu(in[0])}; },
                [](const Tensors& in) { return Tensors{SwigluReference(in[0])}; },
                {Random({23, 2 * size}) * 4});
  }
}

TEST(Swiglu, SaturatesWithoutOverflow) {
  const at::Tensor gate_up = at::tensor({-500.0f, 500.0f, 2.0f, 2.0f}).view({1, 4});
  const at::Tensor y = Swiglu(gate_up);
  EXPECT_NEAR(y[0][0].item<float>(), 0.0f, 1e-30);
  EXPECT_FLOAT_EQ(y[0][1].item<float>(), 1000.0f);
}

class LinearOfLibrary : public testing::TestWithParam<MatrixLibrary> {
 protected:
  void SetUp() override {
    if (GetParam() == MatrixLibrary::kOneDnn && !HasOneDnn()) GTEST_SKIP() << "no oneDNN here";
    SetMatrixLibrary(GetParam());
  }
  void TearDown() override { SetMatrixLibrary(MatrixLibrary::kDefault); }
};

TEST_P(LinearOfLibrary, EqualsReference) {
  at::manual_seed(1);
  const Tensors inputs = {Random({40, 33}), Random({51, 33}), Random({40, 51})};
  ExpectEqual([](const Tensors& in) { return Tensors{Linear(in[0], in[1], in[2])}; },
              [](const Tensors& in) { return Tensors{in[0].mm(in[1].t()) + in[2]}; }, inputs);
  ExpectEqual([](const Tensors& in) { return Tensors{Linear(in[0], in[1])}; },
              [](const Tensors& in) { return Tensors{in[0].mm(in[1].t())}; },
              {inputs[0], inputs[1]});
}

TEST_P(LinearOfLibrary, StoresAndAdds) {
  at::manual_seed(1);
  const at::Tensor a = Random({20, 30}), b = Random({10, 30});
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble).t());
  at::Tensor out = at::full({20, 10}, 7.0f);
  StoreTimesTransposed(a, b, out);
  EXPECT_TRUE(at::allclose(out.to(at::kDouble), exact, 1e-5, 1e-5));
  AddTimesTransposed(a, b, out);
  EXPECT_TRUE(at::allclose(out.to(at::kDouble), exact * 2, 1e-5, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Libraries, LinearOfLibrary,
                         testing::Values(MatrixLibrary::kDefault, MatrixLibrary::kOneDnn));

TEST(RotaryQkv, EqualsReference) {
  struct Case {
    int64_t batch, length, query_heads, key_heads, head_dim;
  };
  for (const Case& c : {Case{1, 5, 2, 2, 8}, Case{3, 7, 4, 2, 16}, Case{2, 4, 6, 1, 6}}) {
    at::manual_seed(1);
    const at::Tensor angles = Random({c.length + 3, c.head_dim / 2}).to(at::kDouble);
    const at::Tensor cosine = angles.cos();
    const at::Tensor sine = angles.sin();
    const auto list = [](std::array<at::Tensor, 3> out) { return Tensors(out.begin(), out.end()); };
    ExpectEqual(
        [&](const Tensors& in) {
          return list(RotaryQkv(in[0], cosine.to(at::kFloat), sine.to(at::kFloat), c.batch,
                                c.query_heads, c.key_heads));
        },
        [&](const Tensors& in) {
          return list(RotaryQkvReference(in[0], cosine, sine, c.batch, c.query_heads, c.key_heads));
        },
        {Random({c.batch * c.length, (c.query_heads + 2 * c.key_heads) * c.head_dim})});
  }
}

}  // namespace
}  // namespace fedshard::kernels
