#include "common/spec/model_config_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/spec/json_fields.h"
#include "common/spec/rope_json.h"
#include "common/status_macros.h"

namespace fedshard {
namespace {

using nlohmann::json;

// Far from where sizes in bytes leave 64 bits.
constexpr double kMaxParameters = 1e15;
constexpr size_t kMaxBytes = 1 << 20;

// Says nothing about the mathematics of training.
const std::set<std::string>& HarmlessFields() {
  static const auto* fields = new std::set<std::string>{
      "_name_or_path", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype",
      "dtype", "use_cache", "transformers_version", "tokenizer_class", "pretraining_tp",
      "unk_token_id", "name", "_comment", "is_llama_config", "transformers.js_config",
      "unsloth_fixed", "unsloth_version",
      // Of generation, which older writers kept here.
      "do_sample", "max_length", "temperature", "top_p"};
  return *fields;
}

absl::Status CheckFields(const json& config) {
  static const auto* known = new std::set<std::string>{"architectures",
                                                       "model_type",
                                                       "vocab_size",
                                                       "hidden_size",
                                                       "intermediate_size",
                                                       "num_hidden_layers",
                                                       "num_attention_heads",
                                                       "num_key_value_heads",
                                                       "head_dim",
                                                       "max_position_embeddings",
                                                       "rms_norm_eps",
                                                       "rope_theta",
                                                       "rope_scaling",
                                                       "rope_parameters",
                                                       "rope_interleaved",
                                                       "initializer_range",
                                                       "tie_word_embeddings",
                                                       "hidden_act",
                                                       "attention_bias",
                                                       "mlp_bias",
                                                       "attention_dropout",
                                                       "sliding_window",
                                                       "use_sliding_window",
                                                       "partial_rotary_factor",
                                                       "quantization_config",
                                                       "logits_scaling",
                                                       "attention_multiplier",
                                                       "residual_multiplier",
                                                       "embedding_multiplier"};
  for (const auto& [field, value] : config.items()) {
    if (known->count(field) == 0 && HarmlessFields().count(field) == 0) {
      return BadField(field, "is not a known field of a Llama configuration");
    }
  }
  return absl::OkStatus();
}

// "llama" or "mistral".
absl::StatusOr<std::string> Family(const json& config) {
  static const std::map<std::string, std::string> families = {{"LlamaForCausalLM", "llama"},
                                                              {"MistralForCausalLM", "mistral"}};
  std::string type;
  if (IsGiven(config, "model_type")) {
    if (!config["model_type"].is_string()) return BadField("model_type", "must be a string");
    type = config["model_type"].get<std::string>();
  }
  if (!IsGiven(config, "architectures")) {
    if (type == "llama" || type == "mistral") return type;
    return BadField("architectures", "is missing; supported: LlamaForCausalLM, MistralForCausalLM");
  }
  const json& names = config["architectures"];
  if (!names.is_array() || names.size() != 1 || !names[0].is_string()) {
    return BadField("architectures", "must be a list of one name");
  }
  const auto name = names[0].get<std::string>();
  const auto found = families.find(name);
  if (found == families.end()) {
    return BadField("architectures", absl::StrCat("\"", name.substr(0, 80),
                                                  "\" is not supported; only LlamaForCausalLM and "
                                                  "MistralForCausalLM without a sliding window"));
  }
  if (!type.empty() && type != found->second) {
    return BadField("model_type", absl::StrCat("\"", type.substr(0, 80), "\" contradicts ", name));
  }
  return found->second;
}

// What is missing from a Mistral's configuration has other defaults than in a Llama's, among them a
// sliding window.
absl::Status CheckDefaults(const json& config, const std::string& family) {
  if (family != "mistral") return absl::OkStatus();
  for (const char* field : {"num_key_value_heads", "max_position_embeddings", "sliding_window"}) {
    if (!config.contains(field)) {
      return BadField(field, "is missing, and a Mistral's default is another than a Llama's");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckUnsupported(const json& config) {
  RETURN_IF_ERROR(MustBe(config, "hidden_act", "silu"));
  for (const char* off : {"attention_bias", "mlp_bias", "use_sliding_window", "rope_interleaved"}) {
    RETURN_IF_ERROR(MustBe(config, off, false));
  }
  for (const char* none : {"sliding_window", "quantization_config"}) {
    RETURN_IF_ERROR(MustBe(config, none, nullptr));
  }
  for (const char* one : {"partial_rotary_factor", "logits_scaling", "attention_multiplier",
                          "residual_multiplier", "embedding_multiplier"}) {
    RETURN_IF_ERROR(MustBe(config, one, 1.0));
  }
  return MustBe(config, "attention_dropout", 0.0);
}

// Dimensions that are each possible may still multiply to a size that is not.
absl::Status CheckParameters(const ModelConfig& model) {
  const double hidden = static_cast<double>(model.hidden_size);
  const double heads =
      2.0 * static_cast<double>(model.num_attention_heads + model.num_key_value_heads);
  const double attention = heads * static_cast<double>(model.head_dim) * hidden;
  const double mlp = 3.0 * static_cast<double>(model.intermediate_size) * hidden;
  const double vocabulary = 2.0 * static_cast<double>(model.vocab_size) * hidden;
  const double parameters =
      static_cast<double>(model.num_hidden_layers) * (attention + mlp) + vocabulary;
  if (parameters <= kMaxParameters) return absl::OkStatus();
  const char* largest = attention > mlp ? "num_attention_heads" : "intermediate_size";
  return BadField(vocabulary > parameters / 2 ? "vocab_size" : largest,
                  absl::StrCat("with the other sizes gives ", parameters, " parameters, more than ",
                               kMaxParameters));
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& text) {
  if (text.size() > kMaxBytes) return absl::InvalidArgumentError("larger than 1 MiB");
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  ASSIGN_OR_RETURN(const std::string family, Family(config));
  RETURN_IF_ERROR(CheckFields(config));
  RETURN_IF_ERROR(CheckUnsupported(config));
  RETURN_IF_ERROR(CheckDefaults(config, family));
  ModelConfig model;
  ASSIGN_OR_RETURN(model.vocab_size, Dimension(config, "vocab_size"));
  ASSIGN_OR_RETURN(model.hidden_size, Dimension(config, "hidden_size"));
  ASSIGN_OR_RETURN(model.intermediate_size, Dimension(config, "intermediate_size"));
  ASSIGN_OR_RETURN(model.num_hidden_layers, Dimension(config, "num_hidden_layers"));
  ASSIGN_OR_RETURN(model.num_attention_heads, Dimension(config, "num_attention_heads"));
  ASSIGN_OR_RETURN(model.num_key_value_heads,
                   Dimension(config, "num_key_value_heads", model.num_attention_heads));
  ASSIGN_OR_RETURN(model.max_position_embeddings,
                   Dimension(config, "max_position_embeddings", 2048));
  if (model.num_hidden_layers > 10'000)
    return BadField("num_hidden_layers", "must be at most 10000");
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    return BadField("num_key_value_heads", absl::StrCat(model.num_key_value_heads,
                                                        " does not divide num_attention_heads = ",
                                                        model.num_attention_heads));
  }
  const auto head_dim = config.find("head_dim");
  const bool divides = head_dim == config.end() || head_dim->is_null();
  if (divides && model.hidden_size % model.num_attention_heads != 0) {
    return BadField("num_attention_heads",
                    absl::StrCat(model.num_attention_heads,
                                 " does not divide hidden_size = ", model.hidden_size));
  }
  ASSIGN_OR_RETURN(model.head_dim,
                   Dimension(config, "head_dim",
                             std::max<int64_t>(1, model.hidden_size / model.num_attention_heads)));
  if (model.head_dim % 2 != 0) return BadField("head_dim", "must be even for rotary embeddings");
  RETURN_IF_ERROR(Positive(config, "rms_norm_eps", model.rms_norm_eps));
  RETURN_IF_ERROR(ParseRope(config, model));
  RETURN_IF_ERROR(Positive(config, "initializer_range", model.initializer_range));
  if (const auto tie = config.find("tie_word_embeddings"); tie != config.end() && !tie->is_null()) {
    if (!tie->is_boolean()) return BadField("tie_word_embeddings", "must be true or false");
    model.tie_word_embeddings = tie->get<bool>();
  }
  RETURN_IF_ERROR(CheckParameters(model));
  return model;
}

}  // namespace fedshard
