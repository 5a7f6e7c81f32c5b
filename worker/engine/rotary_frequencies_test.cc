// The frequencies are those of transformers 5.24 (LlamaRotaryEmbedding.inv_freq on CPU), printed
// from it, for each kind of scaling; the parity tests compare whole models.
#include "worker/engine/rotary_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fedshard::engine {
namespace {

void ExpectFrequencies(const ModelConfig& config, const std::vector<float>& expected) {
  const std::vector<float> frequencies = RotaryFrequencies(config);
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(std::abs(frequencies[i] / expected[i] - 1), 1e-6) << i << ": " << frequencies[i];
  }
}

ModelConfig Config(int64_t head_dim, double theta, RopeScaling scaling) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  config.rope_scaling = scaling;
  return config;
}

TEST(RotaryFrequencies, Default) {
  ExpectFrequencies(Config(16, 1e4, {}),
                    {1.0f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f,
                     0.00316227786f, 0.00100000005f, 0.000316227786f});
}

TEST(RotaryFrequencies, Linear) {
  ExpectFrequencies(Config(16, 1e4, {RopeScaling::Type::kLinear, 4}),
                    {0.25f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f,
                     0.000790569466f, 0.000250000012f, 7.90569466e-05f});
}

TEST(RotaryFrequencies, OfLlama32) {
  ExpectFrequencies(Config(64, 5e5, {RopeScaling::Type::kLlama3, 32, 1, 4, 8192}),
                    {1.0f,
                     0.663601279f,
                     0.440366626f,
                     0.292227834f,
                     0.193922758f,
                     0.128687382f,
                     0.0853971019f,
                     0.0566696189f,
                     0.0376060307f,
                     0.0249554086f,
                     0.0165604409f,
                     0.0109895291f,
                     0.00729266508f,
                     0.00483942125f,
                     0.00321144611f,
                     0.00129054801f,
                     0.000429556705f,
                     9.70828623e-05f,
                     1.94616387e-05f,
                     1.29147675e-05f,
                     8.57025589e-06f,
                     5.68723226e-06f,
                     3.77405445e-06f,
                     2.50446715e-06f,
                     1.66196742e-06f,
                     1.10288363e-06f,
                     7.31874934e-07f,
                     4.85673127e-07f,
                     3.22293289e-07f,
                     2.1387423e-07f,
                     1.41927202e-07f,
                     9.41830649e-08f});
}

}  // namespace
}  // namespace fedshard::engine
