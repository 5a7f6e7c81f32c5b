// Where each parameter lives: the model cut into units, each one flat padded vector, cut again into
// equal shards. Pure arithmetic without tensors; values are immutable after construction, so any
// thread may read them.
//
// Units: embedding, each block, head (final norm and lm_head). With tied embeddings the embedding
// unit also holds the final norm and serves as head. Within a unit the matrices (weight decay) come
// first, the norm weights (no decay) after a boundary that is a multiple of kRangeAlignment. Every
// unit is padded with zeros to a multiple of shards * kBlockElements, so that the blocks of the
// gradient norm never straddle shards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model_config.h"

namespace fedshard::engine {

// Gradient norms are summed over blocks of this many elements; see clip.h.
inline constexpr int64_t kBlockElements = 4096;
// Ranges with and without decay start and end at multiples of this. Fused optimizers round their
// scalar tail differently from their vector body, so a range whose length is not a multiple of the
// vector length would depend on how it is cut.
inline constexpr int64_t kRangeAlignment = 64;

enum class UnitKind { kEmbedding, kBlock, kHead };

struct ParameterSpec {
  std::string name;  // As in Hugging Face checkpoints.
  std::vector<int64_t> shape;
  int64_t offset = 0;  // In elements from the start of the unit.
  int64_t size = 0;    // Elements.
  bool decay = false;
};

struct UnitLayout {
  UnitKind kind = UnitKind::kBlock;
  std::vector<ParameterSpec> parameters;  // By offset.
  int64_t decay_end = 0;    // [0, decay_end) decays, [decay_end, padded_size) does not.
  int64_t padded_size = 0;  // Elements, a multiple of shards * kBlockElements.

  int64_t parameter_count() const;
  // Throws std::invalid_argument when there is none of this name.
  const ParameterSpec& Find(const std::string& name) const;
  bool Has(const std::string& name) const;
};

// Part of one parameter inside one shard.
struct ShardPiece {
  int parameter = 0;             // Index in UnitLayout::parameters.
  int64_t parameter_offset = 0;  // Elements from the start of the parameter.
  int64_t shard_offset = 0;      // Elements from the start of the shard.
  int64_t length = 0;
};

// Elements that are neither part of a parameter: [begin, end) in the unit.
struct Gap {
  int64_t begin = 0;
  int64_t end = 0;
};

class ModelLayout {
 public:
  // Throws std::invalid_argument, naming the field, when `config` is not a model.
  ModelLayout(const ModelConfig& config, int shards);

  const std::vector<UnitLayout>& units() const { return units_; }
  int shards() const { return shards_; }
  int blocks() const { return blocks_; }
  bool tied() const { return tied_; }

  // Unit indices: the embedding is 0, block i is 1 + i; with tied embeddings the head is the
  // embedding.
  int embedding_unit() const { return 0; }
  int block_unit(int block) const { return 1 + block; }
  int head_unit() const { return tied_ ? 0 : 1 + blocks_; }

  int64_t shard_size(int unit) const { return units_[unit].padded_size / shards_; }
  std::vector<ShardPiece> Pieces(int unit, int shard) const;
  std::vector<Gap> Gaps(int unit) const;
  // Elements of the shard that decay: [0, n) of it do, the rest does not.
  int64_t DecayElements(int unit, int shard) const;

  int64_t parameter_count() const;
  int64_t padded_count() const;
  // Throws std::invalid_argument when the model has no parameter `name`.
  int UnitOf(const std::string& name) const;

 private:
  std::vector<UnitLayout> units_;
  int shards_;
  int blocks_;
  bool tied_;
};

}  // namespace fedshard::engine
