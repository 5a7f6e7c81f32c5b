// Proves, on the CPU, the way from the room's functions to the CUDA kernels and back: with a table
// that hands the tensors' arguments to the blocks' code as the plugin hands them to the GPU, values
// and gradients of each function equal the references, so no argument is mixed up and autograd
// gets what belongs to it. And tensors that the kernels cannot take are refused.
#include "worker/kernels/device_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "worker/kernels/cuda/blocks.h"
#include "worker/kernels/cuda/geometry.h"
#include "worker/kernels/cuda/table.h"
#include "worker/kernels/cuda/tensor_arguments.h"
#include "worker/kernels/cuda/testing/host_threads.h"
#include "worker/kernels/references.h"

namespace fedshard::kernels {
namespace {

using cuda::HostBlock;
using Threads = HostBlock::Threads;
using Tensors = std::vector<at::Tensor>;
using Kernel = std::function<Tensors(const Tensors&)>;

int launches = 0;

// body(threads, block), as a launch of `blocks` blocks.
template <typename Body>
void Launch(int blocks, Body body) {
  ++launches;
  for (int block = 0; block < blocks; ++block) {
    HostBlock::Run(32, false, [&](Threads& threads) { body(threads, block); });
  }
}

void HostRmsNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                 double eps, const at::Tensor& sum, const at::Tensor& y, const at::Tensor& scales) {
  const auto a = cuda::ForRmsNorm(x, residual, weight, eps, sum, y, scales);
  Launch(2,
         [&](Threads& threads, int block) { cuda::RmsNormBlock<float, 1>(threads, block, 2, a); });
}

void HostRmsNormGradient(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad_y,
                         const at::Tensor& grad_sum, const at::Tensor& scales,
                         const at::Tensor& grad_x, const at::Tensor& grad_weight) {
  const int blocks = cuda::RmsNormPartials(x.size(0));
  const at::Tensor partials = at::empty({blocks, x.size(1)});
  const auto a =
      cuda::ForRmsNormGradient(x, weight, grad_y, grad_sum, scales, grad_x, partials, grad_weight);
  Launch(blocks, [&](Threads& threads, int block) {
    cuda::RmsNormGradientBlock<float, 1>(threads, block, blocks, a, a.partials + block * a.size);
  });
  for (int64_t i = 0; i < a.size; ++i) cuda::SumPartials<float>(a, blocks, i);
}

void HostRotary(bool back, const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto a = cuda::ForRotary(qkv, cosine, sine, q, k, v);
  Launch(2, [&](Threads& threads, int block) {
    if (back) {
      cuda::RotaryBlock<true, float, 1>(threads, block, 2, a);
    } else {
      cuda::RotaryBlock<false, float, 1>(threads, block, 2, a);
    }
  });
}

void HostSwiglu(const at::Tensor& gate_up, const at::Tensor& grad_y, const at::Tensor& out) {
  const auto a = cuda::ForSwiglu(gate_up, grad_y, out);
  Launch(2,
         [&](Threads& threads, int block) { cuda::SwigluBlock<float, 1>(threads, block, 2, a); });
}

void HostCrossEntropy(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& losses,
                      bool gradient, double scale) {
  const auto a = cuda::ForCrossEntropy(logits, targets, losses, gradient, scale);
  Launch(2, [&](Threads& threads, int block) {
    if (gradient) {
      cuda::CrossEntropyBlock<true, float, 1>(threads, block, 2, a);
    } else {
      cuda::CrossEntropyBlock<false, float, 1>(threads, block, 2, a);
    }
  });
}

constexpr cuda::KernelTable kHostTable = {HostRmsNorm, HostRmsNormGradient, HostRotary, HostSwiglu,
                                          HostCrossEntropy};

class DeviceKernels : public ::testing::Test {
 protected:
  DeviceKernels() {
    cuda::SetTableForTesting(&kHostTable);
    at::manual_seed(4);
    launches = 0;
  }
  ~DeviceKernels() override { cuda::SetTableForTesting(nullptr); }

  static Tensors Run(const Kernel& kernel, const Tensors& inputs) {
    Tensors leaves, seeds, all;
    for (const at::Tensor& input : inputs) leaves.push_back(input.clone().requires_grad_(true));
    const Tensors outputs = kernel(leaves);
    at::manual_seed(3);
    for (const at::Tensor& output : outputs) {
      all.push_back(output.detach());
      seeds.push_back(at::randn(output.sizes()));
    }
    for (const at::Tensor& grad : torch::autograd::grad(outputs, leaves, seeds)) {
      all.push_back(grad);
    }
    return all;
  }
  // `kernel` runs two launches: forward and backward.
  static void ExpectEqual(const Kernel& kernel, const Kernel& reference, const Tensors& inputs) {
    const Tensors got = Run(kernel, inputs), expected = Run(reference, inputs);
    EXPECT_EQ(launches, 2);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-5, 1e-5)) << "tensor " << i;
    }
  }
};

TEST_F(DeviceKernels, RmsNorm) {
  ExpectEqual([](const Tensors& in) { return Tensors{DeviceRmsNorm(in[0], in[1], 1e-5)}; },
              [](const Tensors& in) { return Tensors{RmsNormReference(in[0], in[1], 1e-5)}; },
              {at::randn({5, 24}), at::randn({24})});
}

TEST_F(DeviceKernels, AddRmsNorm) {
  ExpectEqual(
      [](const Tensors& in) {
        const auto [sum, y] = DeviceAddRmsNorm(in[0], in[1], in[2], 1e-5);
        return Tensors{sum, y};
      },
      [](const Tensors& in) {
        const at::Tensor sum = in[0] + in[1];
        return Tensors{sum, RmsNormReference(sum, in[2], 1e-5)};
      },
      {at::randn({5, 24}), at::randn({5, 24}), at::randn({24})});
}

TEST_F(DeviceKernels, Swiglu) {
  ExpectEqual([](const Tensors& in) { return Tensors{DeviceSwiglu(in[0])}; },
              [](const Tensors& in) { return Tensors{SwigluReference(in[0])}; },
              {at::randn({5, 2 * 24})});
}

TEST_F(DeviceKernels, RotaryQkv) {
  const int64_t batch = 2, length = 3, query = 4, key = 2, half = 5;
  const at::Tensor angles = at::rand({length + 1, half}) * 6;
  const auto split = [&](auto function) {
    return [&, function](const Tensors& in) {
      const auto parts = function(in[0], angles.cos(), angles.sin(), batch, query, key);
      return Tensors(parts.begin(), parts.end());
    };
  };
  ExpectEqual(split(DeviceRotaryQkv), split(RotaryQkvReference),
              {at::randn({batch * length, (query + 2 * key) * 2 * half})});
}

TEST_F(DeviceKernels, CrossEntropy) {
  const at::Tensor logits = at::randn({5, 40}) * 3, targets = at::randint(40, {5}, at::kLong);
  const at::Tensor leaf = logits.clone().requires_grad_(true);
  const at::Tensor expected = at::log_softmax(leaf, 1).gather(1, targets.unsqueeze(1)).sum().neg();
  EXPECT_NEAR(DeviceCrossEntropy(logits.clone(), targets, std::nullopt).item<double>(),
              expected.item<float>(), 1e-4);
  const at::Tensor grad = logits.clone();
  EXPECT_NEAR(DeviceCrossEntropy(grad, targets, 0.5).item<double>(), expected.item<float>(), 1e-4);
  EXPECT_TRUE(at::allclose(grad, torch::autograd::grad({expected}, {leaf})[0] * 0.5, 1e-5, 1e-6));
  EXPECT_EQ(launches, 2);
}

TEST_F(DeviceKernels, RefusesWhatTheKernelsCannotTake) {
  const at::Tensor x = at::randn({4, 8}), weight = at::ones({8});
  EXPECT_THROW(DeviceRmsNorm(at::randn({8, 4}).t(), weight, 0), c10::Error);
  EXPECT_THROW(DeviceRmsNorm(x, weight.to(at::kBFloat16), 0), c10::Error);
  EXPECT_THROW(DeviceRotaryQkv(x, at::ones({1, 1}), at::ones({1, 1}), 1, 2, 1), c10::Error);
  EXPECT_EQ(launches, 0);
}

TEST(DeviceReferences, ServeWithoutATable) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({4, 8}), weight = at::randn({8});
  EXPECT_TRUE(at::equal(DeviceRmsNorm(x, weight, 1e-5), RmsNormReference(x, weight, 1e-5)));
  const at::Tensor logits = at::randn({5, 40}), targets = at::randint(40, {5}, at::kLong);
  at::Tensor grad = logits.clone();
  const double loss = DeviceCrossEntropy(grad, targets, 1.0).item<double>();
  EXPECT_NEAR(loss, DeviceCrossEntropy(logits, targets, std::nullopt).item<double>(), 1e-4);
  EXPECT_NEAR(grad.sum().item<float>(), 0, 1e-5);
}

TEST(DeviceReferences, ComputeBf16InFp32) {
  at::manual_seed(4);
  const auto bf16 = [](at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); };
  const auto expect_rounded = [](const at::Tensor& got, const at::Tensor& exact) {
    EXPECT_TRUE(at::equal(got, exact.to(at::kBFloat16)));
  };
  const at::Tensor x = bf16({4, 8}), weight = bf16({8}), qkv = bf16({6, 8 * 4});
  const at::Tensor wide_x = x.to(at::kFloat), wide_weight = weight.to(at::kFloat);
  expect_rounded(DeviceRmsNorm(x, weight, 1e-5), RmsNormReference(wide_x, wide_weight, 1e-5));
  expect_rounded(DeviceSwiglu(x), SwigluReference(wide_x));
  const at::Tensor cosine = at::rand({3, 2}), sine = at::rand({3, 2});
  const auto parts = DeviceRotaryQkv(qkv, cosine, sine, 2, 4, 2);
  const auto exact = RotaryQkvReference(qkv.to(at::kFloat), cosine, sine, 2, 4, 2);
  for (int i = 0; i < 3; ++i) expect_rounded(parts[i], exact[i]);
  at::Tensor logits = bf16({5, 40}), wide = logits.to(at::kFloat);
  const at::Tensor targets = at::randint(40, {5}, at::kLong);
  EXPECT_EQ(DeviceCrossEntropy(logits, targets, 1.0).item<double>(),
            DeviceCrossEntropy(wide, targets, 1.0).item<double>());
  expect_rounded(logits, wide);
}

}  // namespace
}  // namespace fedshard::kernels
