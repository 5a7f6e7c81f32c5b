// The options of `fedshard eval` and `fedshard generate`, declared once: fedshard parses them, and
// passes them on to fedshard-model, which parses them again. Plain data.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace fedshard::inference {

struct CommonOptions {
  std::string model;  // A checkpoint, a folder of checkpoints or a Hugging Face folder.
  int ranks = 1;
  int threads = 0;  // Of each rank; 0 = the CPUs of this machine divided by the ranks.
  int timeout_s = 600;
  bool json = false;
};

struct EvalOptions {
  CommonOptions common;
  std::string data;
  int64_t sequence_length = 0;  // 0 = the smaller of 1024 and what the model takes.
  int64_t sequences = 0;        // 0 = all.
  int64_t micro_batch = 1;
};

struct GenerateOptions {
  CommonOptions common;
  std::string prompt;
  std::vector<int64_t> prompt_tokens;
  std::string tokenizer;  // File; empty = the model's own, or bytes.
  bool raw_prompt = false;
  int64_t tokens = 0;  // 0 = 200, or what the model has room for.
  int samples = 1;
  double temperature = 0.8;
  double top_p = 1;
  uint64_t seed = 0;
  std::vector<int64_t> stop_tokens;  // Besides those of the model's config.json.
};

// `jobs`: MODEL may be the name of a job as well, and the job says what is not given; otherwise
// --data is required.
void AddEvalOptions(CLI::App& command, bool jobs, EvalOptions& options);
void AddGenerateOptions(CLI::App& command, bool jobs, GenerateOptions& options);

// Arguments that parse to the same options, the command's name first.
std::vector<std::string> ToArguments(const EvalOptions& options);
std::vector<std::string> ToArguments(const GenerateOptions& options);

}  // namespace fedshard::inference
