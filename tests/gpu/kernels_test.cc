// The CUDA kernels on a GPU: equal to the references in double precision, values and gradients, in
// fp32 and bf16, for sizes that fill 16 bytes and such that do not, more rows than blocks, and
// weights' gradients too long for shared memory; the same bits every time; and on the caller's
// stream. (That the arithmetic is right is shown without a GPU by
// worker/kernels/cuda/rows_test.cc.)
#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "tests/gpu/gpu.h"
#include "worker/kernels/chunked_cross_entropy.h"
#include "worker/kernels/cuda/table.h"
#include "worker/kernels/device_kernels.h"
#include "worker/kernels/references.h"
#include "worker/kernels/rms_norm.h"
#include "worker/kernels/rotary.h"
#include "worker/kernels/swiglu.h"

namespace fedshard::kernels {
namespace {

using gpu::OnGpu;
using Tensors = std::vector<at::Tensor>;
using Kernel = std::function<Tensors(const Tensors&)>;

class GpuKernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    FEDSHARD_NEEDS_GPU();
    if (!cuda::HaveKernels()) GTEST_SKIP() << "the plugin was built without nvcc";
    at::manual_seed(5);
  }
  static at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape).to(GetParam()); }

  // Values and gradients of `kernel` on the GPU and of `reference` in double on the CPU.
  static void ExpectEqual(const Kernel& kernel, const Kernel& reference, const Tensors& inputs) {
    const Tensors got = Run(kernel, inputs, OnGpu(GetParam()));
    const Tensors again = Run(kernel, inputs, OnGpu(GetParam()));
    const Tensors expected = Run(reference, inputs, at::TensorOptions().dtype(at::kDouble));
    ASSERT_EQ(got.size(), expected.size());
    const double rounding = GetParam() == at::kBFloat16 ? 1.0 / 256 : 0;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], again[i])) << "tensor " << i << " differs from run to run";
      const double scale = expected[i].abs().max().item<double>();
      const at::Tensor excess = (got[i].cpu().to(at::kDouble) - expected[i]).abs() -
                                1.01 * rounding * expected[i].abs() - 5e-6 * scale;
      EXPECT_LE(excess.max().item<double>(), 0) << "tensor " << i << ", of " << scale;
    }
  }

 private:
  static Tensors Run(const Kernel& kernel, const Tensors& inputs, at::TensorOptions options) {
    Tensors leaves;
    for (const at::Tensor& input : inputs) {
      leaves.push_back(input.to(options).detach().requires_grad_(true));
    }
    const Tensors outputs = kernel(leaves);
    Tensors seeds, all;
    at::manual_seed(3);
    for (const at::Tensor& output : outputs) {
      seeds.push_back(at::randn(output.sizes()).to(GetParam()).to(options));
      all.push_back(output.detach());
    }
    for (const at::Tensor& grad : torch::autograd::grad(outputs, leaves, seeds)) {
      all.push_back(grad);
    }
    return all;
  }
};

TEST_P(GpuKernels, RmsNorm) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {
      {37, 257}, {1, 64}, {3000, 128}, {40, 2048}, {5, 12'288}};
  for (const auto& [rows, size] : shapes) {
    SCOPED_TRACE(size);
    ExpectEqual([](const Tensors& in) { return Tensors{RmsNorm(in[0], in[1], 1e-5)}; },
                [](const Tensors& in) { return Tensors{RmsNormReference(in[0], in[1], 1e-5)}; },
                {Random({rows, size}), Random({size})});
  }
}

TEST_P(GpuKernels, AddRmsNorm) {
  if (GetParam() == at::kBFloat16) {
    GTEST_SKIP() << "the reference does not round the sum; rows_test.cc covers bf16";
  }
  ExpectEqual(
      [](const Tensors& in) {
        const auto [sum, y] = AddRmsNorm(in[0], in[1], in[2], 1e-5);
        return Tensors{sum, y};
      },
      [](const Tensors& in) {
        const at::Tensor sum = in[0] + in[1];
        return Tensors{sum, RmsNormReference(sum, in[2], 1e-5)};
      },
      {Random({33, 260}), Random({33, 260}), Random({260})});
}

TEST_P(GpuKernels, Swiglu) {
  for (const int64_t size : {8, 171, 8192}) {
    SCOPED_TRACE(size);
    ExpectEqual([](const Tensors& in) { return Tensors{Swiglu(in[0])}; },
                [](const Tensors& in) { return Tensors{SwigluReference(in[0])}; },
                {Random({23, 2 * size})});
  }
}

TEST_P(GpuKernels, Rotary) {
  const int64_t batch = 2, length = 9, query = 8, key = 2;
  for (const int64_t half : {3, 8, 32}) {
    SCOPED_TRACE(half);
    const at::Tensor angles = at::rand({length + 2, half}) * 6;
    const auto split = [&](auto function) {
      return [&, function](const Tensors& in) {
        // Tables that begin later in memory than a row of 16 bytes would.
        const auto table = [&](const at::Tensor& whole) {
          const at::ScalarType type = in[0].is_cuda() ? at::kFloat : at::kDouble;
          return whole.to(in[0].device(), type).narrow(0, 1, length);
        };
        const auto parts =
            function(in[0], table(angles.cos()), table(angles.sin()), batch, query, key);
        return Tensors(parts.begin(), parts.end());
      };
    };
    ExpectEqual(split(RotaryQkv), split(RotaryQkvReference),
                {Random({batch * length, (query + 2 * key) * 2 * half})});
  }
}

TEST_P(GpuKernels, CrossEntropyOfRows) {
  const double scale = 0.125;
  for (const int64_t vocabulary : {67, 4096, 50'257}) {
    SCOPED_TRACE(vocabulary);
    const at::Tensor logits = Random({5, vocabulary}) * 4;
    const at::Tensor targets = at::randint(vocabulary, {5}, at::kLong);
    at::Tensor grad = logits.to(at::kCUDA);
    const at::Tensor loss = DeviceCrossEntropy(grad, targets.to(at::kCUDA), scale);
    const at::Tensor leaf = logits.to(at::kDouble).requires_grad_(true);
    const at::Tensor expected =
        at::log_softmax(leaf, 1).gather(1, targets.unsqueeze(1)).sum().neg();
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
    const at::Tensor expected_grad = torch::autograd::grad({expected}, {leaf})[0] * scale;
    const double rounding = GetParam() == at::kBFloat16 ? 1.0 / 256 : 0;
    const at::Tensor excess = (grad.cpu().to(at::kDouble) - expected_grad).abs() -
                              1.01 * rounding * expected_grad.abs() - 5e-6 * scale;
    EXPECT_LE(excess.max().item<double>(), 0);
  }
}

TEST_P(GpuKernels, RunOnTheCallersStream) {
  const c10::cuda::CUDAStreamGuard guard(at::cuda::getStreamFromPool());
  const at::Tensor ones = at::ones({64, 256}, OnGpu(GetParam()));
  at::Tensor x = at::zeros({64, 128}, OnGpu(GetParam()));
  at::cuda::getCurrentCUDAStream().synchronize();
  at::cuda::sleep(gpu::kLongDelay);  // On this stream, before x is filled.
  x.copy_(ones.narrow(1, 0, 128));
  const at::Tensor y = RmsNorm(x, ones[0].narrow(0, 0, 128), 0);
  EXPECT_TRUE(at::allclose(y, at::ones_like(y)));
}

INSTANTIATE_TEST_SUITE_P(Types, GpuKernels, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) {
                           return info.param == at::kFloat ? std::string("Fp32")
                                                           : std::string("Bf16");
                         });

}  // namespace
}  // namespace fedshard::kernels
