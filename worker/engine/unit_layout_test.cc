// Proves the arithmetic of units and shards for several shard counts and uneven sizes: every
// element of every parameter is in exactly one shard and comes back from there, padding is what
// remains, and ranges obey their alignment.
#include "worker/engine/unit_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

namespace fedshard::engine {
namespace {

ModelConfig SmallModel() {
  ModelConfig model;
  model.vocab_size = 101;
  model.hidden_size = 36;
  model.intermediate_size = 77;
  model.num_hidden_layers = 3;
  model.num_attention_heads = 6;
  model.num_key_value_heads = 2;
  model.head_dim = 6;
  return model;
}

class UnitLayoutOfShards : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  ModelLayout Layout() const {
    ModelConfig model = SmallModel();
    model.tie_word_embeddings = std::get<1>(GetParam());
    return ModelLayout(model, std::get<0>(GetParam()));
  }
};

TEST_P(UnitLayoutOfShards, EveryParameterRoundTrips) {
  const ModelLayout layout = Layout();
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    const UnitLayout& u = layout.units()[unit];
    std::vector<double> flat(u.padded_size, 0);
    for (const ParameterSpec& p : u.parameters) {
      std::iota(flat.begin() + p.offset, flat.begin() + p.offset + p.size, 1.0 + p.offset);
    }
    // Shards are cut from the flat unit, and each parameter is put together from the pieces alone.
    std::vector<std::vector<double>> rebuilt;
    for (const ParameterSpec& p : u.parameters) rebuilt.emplace_back(p.size, -1);
    int64_t covered = 0;
    for (int shard = 0; shard < layout.shards(); ++shard) {
      const double* data = flat.data() + shard * layout.shard_size(unit);
      for (const ShardPiece& piece : layout.Pieces(unit, shard)) {
        ASSERT_GE(piece.shard_offset, 0);
        ASSERT_LE(piece.shard_offset + piece.length, layout.shard_size(unit));
        for (int64_t i = 0; i < piece.length; ++i) {
          double& element = rebuilt[piece.parameter][piece.parameter_offset + i];
          ASSERT_EQ(element, -1) << "element in two shards";
          element = data[piece.shard_offset + i];
        }
        covered += piece.length;
      }
    }
    EXPECT_EQ(covered, u.parameter_count());
    for (size_t i = 0; i < u.parameters.size(); ++i) {
      for (int64_t k = 0; k < u.parameters[i].size; ++k) {
        ASSERT_EQ(rebuilt[i][k], 1.0 + u.parameters[i].offset + k) << u.parameters[i].name;
      }
    }
  }
}

TEST_P(UnitLayoutOfShards, GapsAndParametersFillTheUnit) {
  const ModelLayout layout = Layout();
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    const UnitLayout& u = layout.units()[unit];
    std::vector<int> uses(u.padded_size, 0);
    for (const ParameterSpec& p : u.parameters) {
      for (int64_t i = 0; i < p.size; ++i) ++uses[p.offset + i];
    }
    for (const Gap& gap : layout.Gaps(unit)) {
      ASSERT_LT(gap.begin, gap.end);
      for (int64_t i = gap.begin; i < gap.end; ++i) ++uses[i];
    }
    for (int64_t i = 0; i < u.padded_size; ++i) ASSERT_EQ(uses[i], 1) << "element " << i;
  }
}

TEST_P(UnitLayoutOfShards, RangesSplitMatricesFromNormsAtAlignedPlaces) {
  const ModelLayout layout = Layout();
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    const UnitLayout& u = layout.units()[unit];
    EXPECT_EQ(u.padded_size % (layout.shards() * kBlockElements), 0);
    EXPECT_EQ(u.decay_end % kRangeAlignment, 0);
    int64_t decaying = 0;
    for (int shard = 0; shard < layout.shards(); ++shard) {
      const int64_t elements = layout.DecayElements(unit, shard);
      EXPECT_EQ(elements % kRangeAlignment, 0);
      decaying += elements;
    }
    EXPECT_EQ(decaying, u.decay_end);
    for (const ParameterSpec& p : u.parameters) {
      EXPECT_EQ(p.decay, p.shape.size() == 2) << p.name;
      if (p.decay) {
        EXPECT_LE(p.offset + p.size, u.decay_end) << p.name;
      } else {
        EXPECT_GE(p.offset, u.decay_end) << p.name;
      }
    }
  }
}

TEST_P(UnitLayoutOfShards, OffsetsDoNotDependOnTheShards) {
  const ModelLayout layout = Layout();
  ModelConfig model = SmallModel();
  model.tie_word_embeddings = layout.tied();
  const ModelLayout whole(model, 1);
  ASSERT_EQ(layout.units().size(), whole.units().size());
  for (size_t unit = 0; unit < whole.units().size(); ++unit) {
    const auto& expected = whole.units()[unit].parameters;
    const auto& got = layout.units()[unit].parameters;
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].name, expected[i].name);
      EXPECT_EQ(got[i].offset, expected[i].offset);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, UnitLayoutOfShards,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::Bool()));

TEST(UnitLayout, HasTheNamesAndSizesOfHuggingFace) {
  const ModelLayout layout(SmallModel(), 2);
  ASSERT_EQ(layout.units().size(), 5u);
  EXPECT_EQ(layout.UnitOf("model.embed_tokens.weight"), 0);
  EXPECT_EQ(layout.UnitOf("model.layers.2.mlp.down_proj.weight"), 3);
  EXPECT_EQ(layout.UnitOf("lm_head.weight"), 4);
  EXPECT_EQ(layout.UnitOf("model.norm.weight"), 4);
  const std::vector<int64_t> key_shape = {12, 36};
  EXPECT_EQ(layout.units()[1].Find("model.layers.0.self_attn.k_proj.weight").shape, key_shape);
  const int64_t block = 36 * 36 + 2 * 12 * 36 + 36 * 36 + 3 * 77 * 36 + 2 * 36;
  EXPECT_EQ(layout.parameter_count(), 2 * 101 * 36 + 36 + 3 * block);
  EXPECT_THROW(layout.UnitOf("model.layers.3.mlp.down_proj.weight"), std::invalid_argument);
}

TEST(UnitLayout, TiedModelServesTheHeadFromTheEmbedding) {
  ModelConfig model = SmallModel();
  model.tie_word_embeddings = true;
  const ModelLayout layout(model, 2);
  EXPECT_EQ(layout.units().size(), 4u);
  EXPECT_EQ(layout.head_unit(), layout.embedding_unit());
  EXPECT_EQ(layout.UnitOf("model.norm.weight"), 0);
  EXPECT_THROW(layout.UnitOf("lm_head.weight"), std::invalid_argument);
}

TEST(UnitLayout, RefusesWhatIsNoModel) {
  const auto refuses = [](auto change) {
    ModelConfig model = SmallModel();
    change(model);
    EXPECT_THROW(ModelLayout(model, 1), std::invalid_argument);
  };
  refuses([](ModelConfig& m) { m.hidden_size = 0; });
  refuses([](ModelConfig& m) { m.vocab_size = -1; });
  refuses([](ModelConfig& m) { m.num_key_value_heads = 4; });
  refuses([](ModelConfig& m) { m.head_dim = 5; });
  EXPECT_THROW(ModelLayout(SmallModel(), 0), std::invalid_argument);
}

}  // namespace
}  // namespace fedshard::engine
