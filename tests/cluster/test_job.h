// Small jobs for the cluster tests: a token file, a model and a job file in a folder of the test's
// own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fedshard::testing {

// Everything that a test may want to vary; the defaults train in well under a second per round.
struct TestJob {
  std::string name = "test";
  std::string mode = "fl+hsdp";
  int groups = 2;
  int replicas = 2;
  int shards = 2;
  int64_t steps = 8;
  int micro_batch = 1;
  int accumulation = 1;
  int every_steps = 4;
  int sequence_length = 32;
  std::string optimizer =
      "{type: adamw, learning_rate: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, clip: "
      "1.0}";
  std::string schedule = "{type: cosine, warmup_tokens: 10%, final_ratio: 0.1}";
  std::string weighting = "tokens";
  std::string order = "shuffled";
  std::string evaluation = "{every_rounds: 1, sequences: 8}";
  int check_replicas_every = 0;
  int seed = 1;
  std::string model = "config: model.json, init: random";
  // Whole lines of YAML: `training` with two spaces before each, `sections` at the top level.
  std::string training;
  std::string federation;  // ", key: value"
  std::string sections;
};

// A job of this shape, the rest by default.
TestJob Shaped(const std::string& name, const std::string& mode, int groups, int replicas,
               int shards);

// A folder with train.bin, validation.bin and model.json in it; removed at the end.
class JobFolder {
 public:
  JobFolder();
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::string& path() const { return path_; }
  // Writes NAME.yaml and returns its path.
  std::string Write(const TestJob& job) const;
  // Replaces a file of the folder.
  void WriteFile(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

// Writes `tokens` as uint16 to PATH.bin with the sidecar PATH.json.
void WriteTokenFile(const std::string& path_without_extension, const std::vector<uint16_t>& tokens,
                    int vocabulary);

}  // namespace fedshard::testing
