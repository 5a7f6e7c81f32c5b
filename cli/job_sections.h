// Parts of a job file with many keys: how a step computes, what a round does, checkpoints.
// Stateless; errors go into the section's report.
#pragma once

#include <filesystem>

#include "cli/yaml_section.h"
#include "fedshard/v1/job.pb.h"

namespace fedshard::cli {

// The keys of `training` about precision, memory and steps that are not finite.
void ReadStepOptions(YamlSection& training, v1::TrainingSpec& out);
void ReadFederation(YamlSection section, v1::FederationSpec& out);
// Relative paths are relative to `folder`. Resolves `resume` to a checkpoint on disk, which must be
// of `model_config`, and warns of those that it had to pass over.
void ReadCheckpoint(YamlSection section, const std::filesystem::path& folder,
                    const std::string& model_config, v1::CheckpointSpec& out);

// A whole number of 32 bits, or `fallback`.
int32_t ReadInt32(YamlSection& section, const std::string& key, int32_t fallback);

}  // namespace fedshard::cli
