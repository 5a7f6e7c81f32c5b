#include "worker/engine/unit_layout.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fedshard::engine {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void Require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument("model: " + message);
}

void Validate(const ModelConfig& c) {
  const std::pair<const char*, int64_t> positive[] = {
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_key_value_heads},
      {"head_dim", c.head_dim},
  };
  for (const auto& [name, value] : positive) {
    Require(value > 0, std::string(name) + " must be positive, is " + std::to_string(value));
  }
  Require(c.num_attention_heads % c.num_key_value_heads == 0,
          "num_key_value_heads must divide num_attention_heads");
  Require(c.head_dim % 2 == 0, "head_dim must be even");
}

// Adds parameters one after the other; matrices before norms.
class UnitBuilder {
 public:
  explicit UnitBuilder(UnitKind kind) { unit_.kind = kind; }

  void Matrix(std::string name, int64_t rows, int64_t columns) {
    Add(std::move(name), {rows, columns}, true);
  }
  void Norm(std::string name, int64_t size) {
    if (!norms_begun_) {
      end_ = RoundUp(end_, kRangeAlignment);
      unit_.decay_end = end_;
      norms_begun_ = true;
    }
    Add(std::move(name), {size}, false);
  }
  UnitLayout Build(int shards) {
    unit_.padded_size = RoundUp(end_, shards * kBlockElements);
    if (!norms_begun_) unit_.decay_end = unit_.padded_size;
    return std::move(unit_);
  }

 private:
  void Add(std::string name, std::vector<int64_t> shape, bool decay) {
    int64_t size = 1;
    for (int64_t extent : shape) size *= extent;
    unit_.parameters.push_back({std::move(name), std::move(shape), end_, size, decay});
    end_ += size;
  }

  UnitLayout unit_;
  int64_t end_ = 0;
  bool norms_begun_ = false;
};

UnitLayout MakeBlock(const ModelConfig& c, int64_t index, int shards) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int64_t query = c.num_attention_heads * c.head_dim;
  const int64_t key = c.num_key_value_heads * c.head_dim;
  UnitBuilder unit(UnitKind::kBlock);
  // q, k, v and gate, up are neighbours without a gap: the model multiplies by each run of them at
  // once.
  unit.Matrix(prefix + "self_attn.q_proj.weight", query, c.hidden_size);
  unit.Matrix(prefix + "self_attn.k_proj.weight", key, c.hidden_size);
  unit.Matrix(prefix + "self_attn.v_proj.weight", key, c.hidden_size);
  unit.Matrix(prefix + "self_attn.o_proj.weight", c.hidden_size, query);
  unit.Matrix(prefix + "mlp.gate_proj.weight", c.intermediate_size, c.hidden_size);
  unit.Matrix(prefix + "mlp.up_proj.weight", c.intermediate_size, c.hidden_size);
  unit.Matrix(prefix + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size);
  unit.Norm(prefix + "input_layernorm.weight", c.hidden_size);
  unit.Norm(prefix + "post_attention_layernorm.weight", c.hidden_size);
  return unit.Build(shards);
}

}  // namespace

int64_t UnitLayout::parameter_count() const {
  int64_t count = 0;
  for (const ParameterSpec& parameter : parameters) count += parameter.size;
  return count;
}

bool UnitLayout::Has(const std::string& name) const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const ParameterSpec& p) { return p.name == name; });
}

const ParameterSpec& UnitLayout::Find(const std::string& name) const {
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.name == name) return parameter;
  }
  throw std::invalid_argument("unit has no parameter " + name);
}

ModelLayout::ModelLayout(const ModelConfig& config, int shards)
    : shards_(shards), tied_(config.tie_word_embeddings) {
  Validate(config);
  Require(shards > 0, "number of shards must be positive");
  blocks_ = static_cast<int>(config.num_hidden_layers);

  UnitBuilder embedding(UnitKind::kEmbedding);
  embedding.Matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  if (tied_) embedding.Norm("model.norm.weight", config.hidden_size);
  units_.push_back(embedding.Build(shards));
  for (int block = 0; block < blocks_; ++block) {
    units_.push_back(MakeBlock(config, block, shards));
  }
  if (!tied_) {
    UnitBuilder head(UnitKind::kHead);
    head.Matrix("lm_head.weight", config.vocab_size, config.hidden_size);
    head.Norm("model.norm.weight", config.hidden_size);
    units_.push_back(head.Build(shards));
  }
}

std::vector<ShardPiece> ModelLayout::Pieces(int unit, int shard) const {
  const int64_t begin = shard * shard_size(unit);
  const int64_t end = begin + shard_size(unit);
  std::vector<ShardPiece> pieces;
  const auto& parameters = units_[unit].parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t from = std::max(begin, parameters[i].offset);
    const int64_t to = std::min(end, parameters[i].offset + parameters[i].size);
    if (from >= to) continue;
    pieces.push_back({static_cast<int>(i), from - parameters[i].offset, from - begin, to - from});
  }
  return pieces;
}

std::vector<Gap> ModelLayout::Gaps(int unit) const {
  std::vector<Gap> gaps;
  int64_t at = 0;
  for (const ParameterSpec& parameter : units_[unit].parameters) {
    if (parameter.offset > at) gaps.push_back({at, parameter.offset});
    at = parameter.offset + parameter.size;
  }
  if (units_[unit].padded_size > at) gaps.push_back({at, units_[unit].padded_size});
  return gaps;
}

int64_t ModelLayout::DecayElements(int unit, int shard) const {
  return std::clamp<int64_t>(units_[unit].decay_end - shard * shard_size(unit), 0,
                             shard_size(unit));
}

int64_t ModelLayout::parameter_count() const {
  int64_t count = 0;
  for (const UnitLayout& unit : units_) count += unit.parameter_count();
  return count;
}

int64_t ModelLayout::padded_count() const {
  int64_t count = 0;
  for (const UnitLayout& unit : units_) count += unit.padded_size;
  return count;
}

int ModelLayout::UnitOf(const std::string& name) const {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].Has(name)) return static_cast<int>(unit);
  }
  throw std::invalid_argument("model has no parameter " + name);
}

}  // namespace fedshard::engine
