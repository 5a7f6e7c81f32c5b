// Where a model's values come from: read by logical parameter, whatever cut them into pieces.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace fedshard::checkpoint {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // Elements [begin, begin + count) of `parameter` (named as in Hugging Face checkpoints), as fp32.
  // NOT_FOUND, DATA_LOSS with file and tensor.
  virtual absl::Status Read(const std::string& parameter, int64_t begin, int64_t count,
                            float* out) const = 0;
};

}  // namespace fedshard::checkpoint
