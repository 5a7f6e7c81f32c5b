// Proves, on the CPU, what surrounds the rows in each CUDA kernel: which rows a block takes, where
// they lie in every tensor, that fewer blocks than rows, and partial sums of several blocks, give
// the whole result; and when 16 bytes may be moved at once. (The arithmetic of a row:
// rows_test.cc.)
#include "worker/kernels/cuda/blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "worker/kernels/cuda/geometry.h"
#include "worker/kernels/cuda/testing/host_threads.h"
#include "worker/kernels/references.h"

namespace fedshard::kernels::cuda {
namespace {

using Threads = HostBlock::Threads;

constexpr int64_t kRows = 7;
constexpr int64_t kBlocks = 3;

float* Data(const at::Tensor& tensor) { return tensor.data_ptr<float>(); }

void RunBlocks(const std::function<void(Threads&, int64_t block)>& body) {
  for (int64_t block = 0; block < kBlocks; ++block) {
    HostBlock::Run(64, false, [&](Threads& threads) { body(threads, block); });
  }
}

void ExpectNear(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(got.detach(), expected.detach(), 1e-5, 1e-5))
      << (got - expected).abs().max().item<float>();
}

class Blocks : public ::testing::Test {
 protected:
  Blocks() { at::manual_seed(9); }
};

TEST_F(Blocks, RmsNorm) {
  const int64_t size = 300;
  const at::Tensor x = at::randn({kRows, size}), residual = at::randn({kRows, size});
  const at::Tensor weight = at::randn({size}), grad_y = at::randn({kRows, size});
  const at::Tensor grad_sum = at::randn({kRows, size});
  at::Tensor sum = at::zeros({kRows, size}), y = at::zeros({kRows, size});
  at::Tensor scales = at::zeros({kRows}), grad_x = at::zeros({kRows, size});
  const RmsNormArguments forward{Data(x),      Data(residual), Data(weight), Data(sum), Data(y),
                                 Data(scales), kRows,          size,         1e-5f};
  RunBlocks([&](Threads& threads, int64_t block) {
    RmsNormBlock<float, 4>(threads, block, kBlocks, forward);
  });
  const at::Tensor leaf = (x + residual).requires_grad_(true);
  const at::Tensor weight_leaf = weight.clone().requires_grad_(true);
  const at::Tensor expected = RmsNormReference(leaf, weight_leaf, 1e-5);
  const auto grads = torch::autograd::grad({expected}, {leaf, weight_leaf}, {grad_y});
  ExpectNear(sum, leaf);
  ExpectNear(y, expected);

  for (const bool in_shared : {false, true}) {
    // What was in the scratch before must not matter.
    at::Tensor partials = at::full({kBlocks, size}, 1e9), totals = at::full({size}, 1e9);
    at::Tensor grad_weight = at::zeros({size});
    const RmsNormGradientArguments backward{
        Data(sum),    Data(weight),   Data(grad_y),      Data(grad_sum), Data(scales),
        Data(grad_x), Data(partials), Data(grad_weight), kRows,          size};
    RunBlocks([&](Threads& threads, int64_t block) {
      float* space = in_shared ? Data(totals) : Data(partials) + block * size;
      RmsNormGradientBlock<float, 4>(threads, block, kBlocks, backward, space);
    });
    for (int64_t i = 0; i < size; ++i) SumPartials<float>(backward, kBlocks, i);
    ExpectNear(grad_x, grads[0] + grad_sum);
    ExpectNear(grad_weight, grads[1]);
  }
}

TEST_F(Blocks, Rotary) {
  const int64_t batch = 2, length = 4, query = 4, key = 2, head_dim = 12;
  const int64_t rows = batch * length, width = (query + 2 * key) * head_dim;
  const at::Tensor angles = at::rand({length + 3, head_dim / 2}) * 6;
  const at::Tensor cosine = angles.cos(), sine = angles.sin();
  const at::Tensor qkv = at::randn({rows, width});
  at::Tensor q = at::zeros({batch, length, query, head_dim});
  at::Tensor k = at::zeros({batch, length, key, head_dim}), v = at::zeros_like(k);
  const RotaryArguments forward{Data(qkv), Data(cosine), Data(sine), Data(q), Data(k), Data(v),
                                rows,      length,       query,      key,     head_dim};
  RunBlocks([&](Threads& threads, int64_t block) {
    RotaryBlock<false, float, 1>(threads, block, kBlocks, forward);
  });
  const at::Tensor leaf = qkv.clone().requires_grad_(true);
  const auto expected = RotaryQkvReference(leaf, cosine, sine, batch, query, key);
  ExpectNear(q, expected[0]);
  ExpectNear(k, expected[1]);
  ExpectNear(v, expected[2]);

  // The parts serve as their own gradients.
  at::Tensor grad = at::zeros({rows, width});
  RotaryArguments backward = forward;
  backward.qkv = Data(grad);
  RunBlocks([&](Threads& threads, int64_t block) {
    RotaryBlock<true, float, 1>(threads, block, kBlocks, backward);
  });
  ExpectNear(grad,
             torch::autograd::grad({expected[0], expected[1], expected[2]}, {leaf}, {q, k, v})[0]);
}

TEST_F(Blocks, Swiglu) {
  const int64_t size = 72;
  const at::Tensor gate_up = at::randn({kRows, 2 * size}), grad_y = at::randn({kRows, size});
  at::Tensor y = at::zeros({kRows, size}), grad = at::zeros({kRows, 2 * size});
  const SwigluArguments forward{Data(gate_up), nullptr, Data(y), kRows, size};
  const SwigluArguments backward{Data(gate_up), Data(grad_y), Data(grad), kRows, size};
  RunBlocks([&](Threads& threads, int64_t block) {
    SwigluBlock<float, 4>(threads, block, kBlocks, forward);
    SwigluBlock<float, 4>(threads, block, kBlocks, backward);
  });
  const at::Tensor leaf = gate_up.clone().requires_grad_(true);
  const at::Tensor expected = SwigluReference(leaf);
  ExpectNear(y, expected);
  ExpectNear(grad, torch::autograd::grad({expected}, {leaf}, {grad_y})[0]);
}

TEST_F(Blocks, CrossEntropy) {
  const int64_t vocabulary = 130;
  const at::Tensor logits = at::randn({kRows, vocabulary}) * 3;
  const at::Tensor targets = at::randint(vocabulary, {kRows}, at::kLong);
  at::Tensor losses = at::zeros({kRows}, at::kDouble), grad = logits.clone();
  const CrossEntropyArguments arguments{Data(grad),
                                        targets.const_data_ptr<int64_t>(),
                                        losses.data_ptr<double>(),
                                        kRows,
                                        vocabulary,
                                        /*gradient=*/true,
                                        0.5f};
  RunBlocks([&](Threads& threads, int64_t block) {
    CrossEntropyBlock<true, float, 1>(threads, block, kBlocks, arguments);
  });
  const at::Tensor leaf = logits.clone().requires_grad_(true);
  const at::Tensor expected = at::log_softmax(leaf, 1).gather(1, targets.unsqueeze(1)).neg();
  ExpectNear(losses.to(at::kFloat), expected.squeeze(1));
  ExpectNear(grad, torch::autograd::grad({expected.sum()}, {leaf})[0] * 0.5);
}

TEST(Geometry, SixteenBytesWhereSizesAndAddressesAllow) {
  alignas(16) const char memory[64] = {};
  const auto width = [](Element element, int64_t size, const void* a, const void* b) {
    int result = 0;
    WithElement(element, size, {a, b}, [&](auto, auto width) { result = decltype(width)::value; });
    return result;
  };
  EXPECT_EQ(width(Element::kFloat, 12, memory, memory + 16), 4);
  EXPECT_EQ(width(Element::kFloat, 12, memory, nullptr), 4);
  EXPECT_EQ(width(Element::kFloat, 13, memory, memory), 1);
  EXPECT_EQ(width(Element::kFloat, 12, memory, memory + 4), 1);
  EXPECT_EQ(width(Element::kBf16, 24, memory, memory + 32), 8);
  EXPECT_EQ(width(Element::kBf16, 12, memory, memory), 1);
}

TEST(Geometry, WholeWarpsAndNoMoreThanNeeded) {
  EXPECT_EQ(LanesFor(1, 1024), 32);
  EXPECT_EQ(LanesFor(33, 1024), 64);
  EXPECT_EQ(LanesFor(1 << 20, 1024), 1024);
  EXPECT_EQ(BlocksFor(0), 1);
  EXPECT_EQ(BlocksFor(int64_t{1} << 40), 1 << 20);
  EXPECT_EQ(RmsNormPartials(0), 1);
  EXPECT_EQ(RmsNormPartials(100'000), 512);
}

}  // namespace
}  // namespace fedshard::kernels::cuda
