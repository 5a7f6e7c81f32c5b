#include "common/spec/model_config_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace fedshard {
namespace {

using nlohmann::json;

// Larger than any published model.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
// The same, and far from where sizes in bytes leave 64 bits.
constexpr double kMaxParameters = 1e15;
constexpr size_t kMaxBytes = 1 << 20;

absl::Status Bad(const std::string& field, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule));
}

absl::StatusOr<int64_t> Dimension(const json& config, const std::string& field,
                                  int64_t fallback = 0) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) {
    if (fallback > 0) return fallback;
    return Bad(field, "is missing");
  }
  if (!found->is_number_integer()) return Bad(field, "must be an integer");
  const double value =
      found->get<double>();  // An unsigned 64-bit value stays out of range here too.
  if (value < 1 || value > static_cast<double>(kMaxDimension)) {
    return Bad(field, absl::StrCat("must be 1 to ", kMaxDimension, ", not ", found->dump()));
  }
  return found->get<int64_t>();
}

absl::Status Positive(const json& config, const std::string& field, double& value) {
  const auto found = config.find(field);
  if (found == config.end()) return absl::OkStatus();
  if (!found->is_number()) return Bad(field, "must be a number");
  value = found->get<double>();
  if (!std::isfinite(value) || value <= 0) return Bad(field, "must be finite and above 0");
  return absl::OkStatus();
}

// Present, and neither null nor the one value that means "off".
absl::Status MustBe(const json& config, const std::string& field, const json& only) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null() || *found == only) return absl::OkStatus();
  // Never the text of a list or an object: it may be long, and nested deeper than the stack.
  const std::string value = found->is_structured() ? std::string("an ") + found->type_name()
                                                   : found->dump().substr(0, 80);
  return Bad(field, absl::StrCat("is not supported with ", value, ", only ", only.dump()));
}

// Says nothing about the mathematics of training.
const std::set<std::string>& HarmlessFields() {
  static const auto* fields = new std::set<std::string>{"_name_or_path",
                                                        "auto_map",
                                                        "bos_token_id",
                                                        "eos_token_id",
                                                        "pad_token_id",
                                                        "torch_dtype",
                                                        "dtype",
                                                        "use_cache",
                                                        "transformers_version",
                                                        "tokenizer_class",
                                                        "pretraining_tp",
                                                        "unk_token_id",
                                                        "name",
                                                        "_comment"};
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
                                                       "initializer_range",
                                                       "tie_word_embeddings",
                                                       "hidden_act",
                                                       "attention_bias",
                                                       "mlp_bias",
                                                       "attention_dropout",
                                                       "rope_scaling",
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
      return Bad(field, "is not a known field of a Llama configuration");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckArchitecture(const json& config) {
  static const std::set<std::string> supported = {"LlamaForCausalLM", "MistralForCausalLM"};
  const auto found = config.find("architectures");
  if (found == config.end()) {
    const std::string type = config.contains("model_type") && config["model_type"].is_string()
                                 ? config["model_type"].get<std::string>()
                                 : "";
    if (type == "llama" || type == "mistral") return absl::OkStatus();
    return Bad("architectures", "is missing; supported: LlamaForCausalLM, MistralForCausalLM");
  }
  if (!found->is_array() || found->size() != 1 || !(*found)[0].is_string()) {
    return Bad("architectures", "must be a list of one name");
  }
  const std::string name = (*found)[0];
  if (supported.count(name) == 0) {
    return Bad("architectures", absl::StrCat("\"", name.substr(0, 80),
                                             "\" is not supported; only LlamaForCausalLM and "
                                             "MistralForCausalLM without a sliding window"));
  }
  return absl::OkStatus();
}

absl::Status CheckUnsupported(const json& config) {
  RETURN_IF_ERROR(MustBe(config, "hidden_act", "silu"));
  for (const char* off : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    RETURN_IF_ERROR(MustBe(config, off, false));
  }
  for (const char* none : {"rope_scaling", "sliding_window", "quantization_config"}) {
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
  return Bad(vocabulary > parameters / 2 ? "vocab_size" : largest,
             absl::StrCat("with the other sizes gives ", parameters, " parameters, more than ",
                          kMaxParameters));
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& text) {
  if (text.size() > kMaxBytes) return absl::InvalidArgumentError("larger than 1 MiB");
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  RETURN_IF_ERROR(CheckArchitecture(config));
  RETURN_IF_ERROR(CheckFields(config));
  RETURN_IF_ERROR(CheckUnsupported(config));
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
  if (model.num_hidden_layers > 10'000) return Bad("num_hidden_layers", "must be at most 10000");
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    return Bad("num_key_value_heads",
               absl::StrCat(model.num_key_value_heads,
                            " does not divide num_attention_heads = ", model.num_attention_heads));
  }
  const auto head_dim = config.find("head_dim");
  const bool divides = head_dim == config.end() || head_dim->is_null();
  if (divides && model.hidden_size % model.num_attention_heads != 0) {
    return Bad("num_attention_heads",
               absl::StrCat(model.num_attention_heads,
                            " does not divide hidden_size = ", model.hidden_size));
  }
  ASSIGN_OR_RETURN(model.head_dim,
                   Dimension(config, "head_dim",
                             std::max<int64_t>(1, model.hidden_size / model.num_attention_heads)));
  if (model.head_dim % 2 != 0) return Bad("head_dim", "must be even for rotary embeddings");
  RETURN_IF_ERROR(Positive(config, "rms_norm_eps", model.rms_norm_eps));
  RETURN_IF_ERROR(Positive(config, "rope_theta", model.rope_theta));
  RETURN_IF_ERROR(Positive(config, "initializer_range", model.initializer_range));
  if (const auto tie = config.find("tie_word_embeddings"); tie != config.end() && !tie->is_null()) {
    if (!tie->is_boolean()) return Bad("tie_word_embeddings", "must be true or false");
    model.tie_word_embeddings = tie->get<bool>();
  }
  RETURN_IF_ERROR(CheckParameters(model));
  return model;
}

}  // namespace fedshard
