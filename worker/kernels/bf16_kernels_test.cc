// Proves that the kernels take bf16 tensors and compute inside in fp32: each equals its obvious
// form in double precision on the same bf16 inputs to one rounding of its results; and that the
// conversions and the optimizer's moments round as LibTorch does.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "worker/kernels/adamw.h"
#include "worker/kernels/chunked_cross_entropy.h"
#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/matrix_product.h"
#include "worker/kernels/references.h"
#include "worker/kernels/rms_norm.h"
#include "worker/kernels/rotary.h"
#include "worker/kernels/swiglu.h"

namespace fedshard::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Kernel = std::function<Tensors(const Tensors&)>;

constexpr double kRounding = 1.0 / 256;  // Of a number to bf16: 2^-9 of itself, and some slack.

at::Tensor Bf16(at::IntArrayRef shape, double deviation = 1) {
  return at::randn(shape).mul(deviation).to(at::kBFloat16);
}

Tensors ValuesAndGradients(const Kernel& kernel, const Tensors& inputs, at::ScalarType type) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.to(type).requires_grad_(true));
  const Tensors outputs = kernel(leaves);
  Tensors seeds;
  at::manual_seed(3);
  for (const at::Tensor& output : outputs) seeds.push_back(Bf16(output.sizes()).to(type));
  Tensors all = outputs;
  for (at::Tensor& gradient : torch::autograd::grad(outputs, leaves, seeds)) {
    all.push_back(gradient);
  }
  return all;
}

// Elementwise: off by one rounding, of itself and of what cancels to fp32 precision.
void ExpectRounded(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor exact = expected.detach().to(at::kDouble);
  const at::Tensor error = (got.detach().to(at::kDouble) - exact).abs();
  const at::Tensor bound = exact.abs() * kRounding + exact.abs().max() * 1e-5;
  EXPECT_TRUE((error <= bound).all().item<bool>()) << (error / bound).max();
}

void ExpectEqual(const Kernel& kernel, const Kernel& reference, const Tensors& inputs) {
  const Tensors got = ValuesAndGradients(kernel, inputs, at::kBFloat16);
  const Tensors expected = ValuesAndGradients(reference, inputs, at::kDouble);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(got[i].scalar_type(), at::kBFloat16);
    ExpectRounded(got[i], expected[i]);
  }
}

TEST(Bf16Kernels, RmsNorm) {
  for (const int64_t size : {64, 257}) {
    at::manual_seed(1);
    ExpectEqual([](const Tensors& in) { return Tensors{RmsNorm(in[0], in[1], 1e-6)}; },
                [](const Tensors& in) { return Tensors{RmsNormReference(in[0], in[1], 1e-6)}; },
                {Bf16({37, size}), Bf16({size})});
  }
}

TEST(Bf16Kernels, Swiglu) {
  at::manual_seed(1);
  ExpectEqual([](const Tensors& in) { return Tensors{Swiglu(in[0])}; },
              [](const Tensors& in) { return Tensors{SwigluReference(in[0])}; },
              {Bf16({37, 2 * 65})});
}

TEST(Bf16Kernels, RotaryQkv) {
  at::manual_seed(1);
  const at::Tensor angles = at::rand({9, 6}) * 6;
  const at::Tensor cosine = angles.cos(), sine = angles.sin();
  const auto run = [&](const auto& function) {
    return [&, function](const Tensors& in) {
      const auto out = function(in[0], cosine, sine, 2, 4, 2);
      return Tensors{out[0], out[1], out[2]};
    };
  };
  ExpectEqual(run(RotaryQkv), run(RotaryQkvReference), {Bf16({18, 8 * 12})});
}

TEST(Bf16Kernels, Linear) {
  at::manual_seed(1);
  ExpectEqual([](const Tensors& in) { return Tensors{Linear(in[0], in[1])}; },
              [](const Tensors& in) { return Tensors{in[0].matmul(in[1].t())}; },
              {Bf16({37, 48}), Bf16({65, 48})});
}

TEST(Bf16Kernels, CrossEntropyOfExactLogits) {
  at::manual_seed(1);
  // One row of `hidden` picks a row of the weights, so that the logits need no rounding.
  const int64_t rows = 5, vocabulary = 67;
  const at::Tensor hidden = at::eye(rows).to(at::kBFloat16);
  const at::Tensor weight = Bf16({vocabulary, rows}, 3);
  const at::Tensor targets = at::arange(rows, at::kLong) * 7;
  const at::Tensor logits = at::empty({2, vocabulary}, at::kBFloat16);
  const double scale = 0.125;

  const at::Tensor h = hidden.to(at::kDouble).requires_grad_(true);
  const at::Tensor w = weight.to(at::kDouble).requires_grad_(true);
  const at::Tensor exact = CrossEntropyReference(h, w, targets);
  const Tensors gradients = torch::autograd::grad({exact * scale}, {h, w});

  at::Tensor grad_hidden = at::empty_like(hidden);
  at::Tensor grad_weight = at::empty({vocabulary, rows});
  const at::Tensor loss = ChunkedCrossEntropyWithGradients(hidden, weight, targets, scale, logits,
                                                           grad_hidden, grad_weight);
  EXPECT_NEAR(loss.item<double>(), exact.item<double>(), 1e-5 * exact.item<double>());
  EXPECT_NEAR(ChunkedCrossEntropy(hidden, weight, targets, logits).item<double>(),
              exact.item<double>(), 1e-5 * exact.item<double>());
  ExpectRounded(grad_weight, gradients[1]);
  // Sums of rounded gradients of the logits: off by the rounding of the largest.
  const double error = (grad_hidden.to(at::kDouble) - gradients[0]).abs().max().item<double>();
  EXPECT_LT(error, kRounding * 2 * gradients[0].abs().max().item<double>());
}

TEST(Bf16Conversion, IsLibTorchs) {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               1.00390625f,
                               1.01171875f,
                               3e38f,
                               3.4e38f,
                               1e-40f,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()};
  at::manual_seed(2);
  const at::Tensor random = at::randn({1000});
  values.insert(values.end(), random.data_ptr<float>(), random.data_ptr<float>() + 1000);
  const auto size = static_cast<int64_t>(values.size());
  const at::Tensor x = at::from_blob(values.data(), {size}).clone();
  at::Tensor bits = at::empty({size}, at::kBFloat16);
  FloatToBf16(x.data_ptr<float>(), size, reinterpret_cast<uint16_t*>(bits.data_ptr()));
  EXPECT_TRUE(at::equal(bits, x.to(at::kBFloat16)));
  at::Tensor back = at::empty({size});
  Bf16ToFloat(reinterpret_cast<const uint16_t*>(bits.data_ptr()), size, back.data_ptr<float>());
  EXPECT_TRUE(at::equal(back, bits.to(at::kFloat)));
  const float nan = std::nanf("");
  uint16_t nan_bits = 0;
  FloatToBf16(&nan, 1, &nan_bits);
  EXPECT_TRUE(std::isnan(static_cast<float>(c10::BFloat16(nan_bits, c10::BFloat16::from_bits()))));
}

TEST(AdamWBf16, IsAdamWOnRoundedMoments) {
  at::manual_seed(4);
  const int64_t size = 1000;
  AdamWFactors factors;
  factors.keep = 0.999f;
  factors.beta1 = 0.9f;
  factors.beta2 = 0.95f;
  factors.step = 0.02f;
  factors.root_factor = 1.5f;
  factors.eps = 1e-8f;
  at::Tensor p = at::randn({size}), m = Bf16({size}, 0.1), v = Bf16({size}, 0.1).square();
  const at::Tensor g = at::randn({size}) * 0.1;
  const at::Tensor first = m.to(at::kDouble) * 0.9 + g.to(at::kDouble) * 0.1;
  const at::Tensor second = v.to(at::kDouble) * 0.95 + g.to(at::kDouble).square() * 0.05;
  const at::Tensor expected =
      p.to(at::kDouble) * 0.999 - 0.02 * first / (second.sqrt() * 1.5 + 1e-8);
  AdamWBf16(p, g, m, v, factors);
  EXPECT_LT((p.to(at::kDouble) - expected).abs().max().item<double>(), 2e-6);
  ExpectRounded(m, first);
  ExpectRounded(v, second);
}

}  // namespace
}  // namespace fedshard::kernels
