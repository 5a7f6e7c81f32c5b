// A Hugging Face model folder as a source of parameters: model.safetensors, or several files with
// model.safetensors.index.json. Opens and checks headers only; values are read on demand, byte
// range by byte range. Immutable after Open; any thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model_config.h"
#include "worker/checkpoint/parameter_source.h"
#include "worker/checkpoint/safetensors.h"

namespace fedshard::checkpoint {

class HfWeights : public ParameterSource {
 public:
  // Where both are there, the single file counts, as in transformers. Checks that the folder has
  // every parameter of `model` in its shape, and nothing else that would change the mathematics
  // (buffers like rotary_emb.inv_freq are ignored; with tied embeddings a stored lm_head.weight is
  // too). INVALID_ARGUMENT names the tensor; NOT_FOUND and DATA_LOSS the file.
  static absl::StatusOr<std::unique_ptr<HfWeights>> Open(const std::string& directory,
                                                         const ModelConfig& model);

  absl::Status Read(const std::string& parameter, int64_t begin, int64_t count,
                    float* out) const override;

 private:
  HfWeights() = default;

  absl::Status OpenFile(const std::string& name);
  absl::Status OpenIndexed(const std::string& index);
  absl::Status CheckModel(const ModelConfig& model) const;

  std::string directory_;
  std::map<std::string, std::unique_ptr<SafetensorsReader>> files_;  // By file name.
  std::map<std::string, const SafetensorsReader*> file_of_parameter_;
};

}  // namespace fedshard::checkpoint
