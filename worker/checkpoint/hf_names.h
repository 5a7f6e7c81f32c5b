// Names of the files in a Hugging Face model folder.
#pragma once

namespace fedshard::checkpoint {

inline constexpr char kConfigName[] = "config.json";
inline constexpr char kWeightsName[] = "model.safetensors";
inline constexpr char kIndexName[] = "model.safetensors.index.json";

}  // namespace fedshard::checkpoint
