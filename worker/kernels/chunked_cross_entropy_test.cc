// Proves that the chunked loss and its gradients equal the obvious form in double precision to fp32
// rounding, whatever the chunk, that a chunked run repeats bit for bit, and that bad targets and
// non-finite logits are not swallowed.
#include "worker/kernels/chunked_cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "worker/kernels/references.h"

namespace fedshard::kernels {
namespace {

struct Problem {
  at::Tensor hidden, weight, targets;
};

Problem MakeProblem(int64_t tokens, int64_t size, int64_t vocabulary) {
  at::manual_seed(7);
  return {at::randn({tokens, size}), at::randn({vocabulary, size}) * 0.3,
          at::randint(vocabulary, {tokens}, at::kLong)};
}

double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

struct Result {
  double loss;
  at::Tensor grad_hidden, grad_weight;
};

Result RunChunked(const Problem& p, int64_t chunk, double scale) {
  const at::Tensor logits = at::empty({chunk, p.weight.size(0)});
  Result result{0, at::full_like(p.hidden, 9), at::full_like(p.weight, 9)};
  result.loss = ChunkedCrossEntropyWithGradients(p.hidden, p.weight, p.targets, scale, logits,
                                                 result.grad_hidden, result.grad_weight)
                    .item<double>();
  return result;
}

Result RunReference(const Problem& p, double scale) {
  const at::Tensor hidden = p.hidden.to(at::kDouble).requires_grad_(true);
  const at::Tensor weight = p.weight.to(at::kDouble).requires_grad_(true);
  const at::Tensor loss = CrossEntropyReference(hidden, weight, p.targets);
  const auto grads = torch::autograd::grad({loss * scale}, {hidden, weight});
  return {loss.item<double>(), grads[0], grads[1]};
}

TEST(ChunkedCrossEntropy, EqualsReferenceForEveryChunk) {
  for (const int64_t vocabulary : {17, 256, 1000}) {
    const Problem problem = MakeProblem(50, 24, vocabulary);
    const double scale = 1.0 / 50;
    const Result expected = RunReference(problem, scale);
    for (const int64_t chunk : {1, 7, 16, 50, 64}) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocabulary << " chunk " << chunk);
      const Result got = RunChunked(problem, chunk, scale);
      EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss);
      EXPECT_LT(LargestDifference(got.grad_hidden, expected.grad_hidden), 1e-7);
      EXPECT_LT(LargestDifference(got.grad_weight, expected.grad_weight), 1e-6);
      const double loss_only = ChunkedCrossEntropy(problem.hidden, problem.weight, problem.targets,
                                                   at::empty({chunk, vocabulary}))
                                   .item<double>();
      EXPECT_EQ(loss_only, got.loss);
    }
  }
}

TEST(ChunkedCrossEntropy, SurvivesExtremeLogits) {
  Problem problem = MakeProblem(4, 8, 33);
  problem.hidden.mul_(300);
  const Result expected = RunReference(problem, 1.0);
  const Result got = RunChunked(problem, 3, 1.0);
  EXPECT_NEAR(got.loss, expected.loss, 1e-5 * expected.loss);
  EXPECT_LT(LargestDifference(got.grad_hidden, expected.grad_hidden), 1e-4);
}

TEST(ChunkedCrossEntropy, RepeatsBitForBit) {
  const Problem problem = MakeProblem(40, 16, 100);
  const Result first = RunChunked(problem, 16, 0.5);
  const Result second = RunChunked(problem, 16, 0.5);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_TRUE(at::equal(first.grad_weight, second.grad_weight));
  EXPECT_TRUE(at::equal(first.grad_hidden, second.grad_hidden));
}

TEST(ChunkedCrossEntropy, NonFiniteLogitsGiveNonFiniteLoss) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem problem = MakeProblem(8, 8, 40);
    problem.hidden[5][2] = bad;
    EXPECT_FALSE(std::isfinite(RunChunked(problem, 4, 1.0).loss));
  }
}

TEST(ChunkedCrossEntropy, RefusesTargetsOutsideTheVocabulary) {
  Problem problem = MakeProblem(8, 8, 40);
  problem.targets[3] = 40;
  EXPECT_THROW(RunChunked(problem, 4, 1.0), c10::IndexError);
}

}  // namespace
}  // namespace fedshard::kernels
