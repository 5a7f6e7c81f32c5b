#include "worker/inference/text_codec.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/subprocess.h"

namespace fedshard::inference {
namespace {

constexpr int64_t kToolTimeoutUs = 120'000'000;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ByteCodec : public TextCodec {
 public:
  absl::StatusOr<std::vector<int64_t>> Encode(const std::string& text) override {
    std::vector<int64_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  absl::StatusOr<std::string> Decode(const std::vector<int64_t>& tokens) override {
    std::string text;
    for (const int64_t token : tokens) text.push_back(static_cast<char>(token));
    return text;
  }
  bool by_parts() const override { return true; }
};

class TokenizerCodec : public TextCodec {
 public:
  TokenizerCodec(const std::string& file, bool special_tokens, const std::string& folder)
      : file_(file), special_tokens_(special_tokens), folder_(folder) {}

  absl::StatusOr<std::vector<int64_t>> Encode(const std::string& text) override {
    ASSIGN_OR_RETURN(const std::string output, Run("encode", text));
    std::istringstream numbers(output);
    return std::vector<int64_t>{std::istream_iterator<int64_t>(numbers), {}};
  }
  absl::StatusOr<std::string> Decode(const std::vector<int64_t>& tokens) override {
    return Run("decode", absl::StrJoin(tokens, " "));
  }
  bool by_parts() const override { return false; }

 private:
  absl::StatusOr<std::string> Run(const std::string& verb, const std::string& input) {
    const std::string base = absl::StrCat(folder_, "/tokenize");
    for (const char* end : {".in", ".out", ".err"}) std::filesystem::remove(base + end);
    std::ofstream(base + ".in", std::ios::binary) << input;
    Subprocess::Options options;
    options.argv = {
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fedshard-tokenize")
            .string(),
        verb,
        "--tokenizer",
        file_,
        "--input",
        base + ".in"};
    if (verb == "encode" && !special_tokens_) options.argv.push_back("--raw");
    options.out = options.err = Subprocess::Output::kFile;
    options.out_file = base + ".out";
    options.err_file = base + ".err";
    options.die_with_parent = true;
    ASSIGN_OR_RETURN(const auto process, Subprocess::Start(options));
    const auto exit = process->WaitFor(kToolTimeoutUs);
    if (!exit) return absl::DeadlineExceededError("the tokenizer took longer than 120 s");
    if (exit->signal != 0 || exit->exit_code != 0) {
      std::string error = ReadFile(base + ".err");
      while (!error.empty() && error.back() == '\n') error.pop_back();
      return absl::InvalidArgumentError(error.empty() ? absl::StrCat(file_, ": cannot be used")
                                                      : error);
    }
    return ReadFile(base + ".out");
  }

  const std::string file_;
  const bool special_tokens_;
  const std::string folder_;
};

}  // namespace

std::unique_ptr<TextCodec> MakeByteCodec() { return std::make_unique<ByteCodec>(); }

std::unique_ptr<TextCodec> MakeTokenizerCodec(const std::string& file, bool special_tokens,
                                              const std::string& folder) {
  return std::make_unique<TokenizerCodec>(file, special_tokens, folder);
}

}  // namespace fedshard::inference
