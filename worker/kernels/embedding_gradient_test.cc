// Proves that the embedding's gradient has the bits of LibTorch's, stored or added, in fp32 and for
// bf16 rows, with tokens that come often, once and not at all.
#include "worker/kernels/embedding_gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fedshard::kernels {
namespace {

constexpr int64_t kVocabulary = 23, kSize = 37, kRows = 60;

class EmbeddingGradient : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  EmbeddingGradient() {
    at::manual_seed(5);
    grad_ = at::randn({kRows, kSize}).to(GetParam());
    tokens_ = at::randint(kVocabulary / 2, {kRows}, at::kLong);
    tokens_[17] = kVocabulary - 1;
    expected_ = at::embedding_dense_backward(grad_.to(at::kFloat), tokens_, kVocabulary, -1, false);
  }
  at::Tensor grad_, tokens_, expected_;
};

TEST_P(EmbeddingGradient, IsStored) {
  at::Tensor out = at::full({kVocabulary, kSize}, 7.0f);
  StoreEmbeddingGradient(grad_, tokens_, out);
  EXPECT_TRUE(at::equal(out, expected_));
}

TEST_P(EmbeddingGradient, IsAddedAsOneSum) {
  const at::Tensor before = at::randn({kVocabulary, kSize});
  at::Tensor out = before.clone();
  AddEmbeddingGradient(grad_, tokens_, out);
  EXPECT_TRUE(at::equal(out, before + expected_));
}

TEST_P(EmbeddingGradient, RefusesTokensOutsideTheVocabulary) {
  tokens_[3] = kVocabulary;
  at::Tensor out = at::zeros({kVocabulary, kSize});
  EXPECT_THROW(AddEmbeddingGradient(grad_, tokens_, out), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Types, EmbeddingGradient, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

}  // namespace
}  // namespace fedshard::kernels
