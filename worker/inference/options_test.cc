// Options survive the way from fedshard to fedshard-model, whatever characters are in them, and
// wrong ones are refused by name.
#include "worker/inference/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fedshard::inference {
namespace {

// Parses arguments as fedshard-model does; the first is the command.
template <typename Options, typename AddFn>
Options Parse(std::vector<std::string> arguments, AddFn add) {
  Options options;
  CLI::App app;
  add(app, options);
  std::reverse(arguments.begin(), arguments.end());  // As CLI11 wants it.
  arguments.pop_back();
  app.parse(arguments);
  return options;
}

EvalOptions ParseEval(const std::vector<std::string>& arguments) {
  return Parse<EvalOptions>(arguments, [](CLI::App& app, EvalOptions& options) {
    AddEvalOptions(app, /*jobs=*/false, options);
  });
}

GenerateOptions ParseGenerate(const std::vector<std::string>& arguments) {
  return Parse<GenerateOptions>(arguments, [](CLI::App& app, GenerateOptions& options) {
    AddGenerateOptions(app, /*jobs=*/false, options);
  });
}

TEST(Options, EvalRoundTrip) {
  EvalOptions options;
  options.common = {"folder/with space", 3, 2, 17, true};
  options.data = "a=b.bin";
  options.sequence_length = 128;
  options.sequences = 9;
  options.micro_batch = 4;
  const EvalOptions parsed = ParseEval(ToArguments(options));
  EXPECT_EQ(ToArguments(parsed), ToArguments(options));
  EXPECT_EQ(parsed.common.model, "folder/with space");
  EXPECT_EQ(parsed.data, "a=b.bin");
  EXPECT_TRUE(parsed.common.json);
  EXPECT_EQ(parsed.sequence_length, 128);
}

TEST(Options, GenerateRoundTripWithAwkwardPrompts) {
  for (const std::string prompt : {"ROMEO:", "--seed=3", "-x", "\"quoted\" 'and' \\ more", "a\nb",
                                   "  blank ", "[1,2]", "a,b", "%%"}) {
    GenerateOptions options;
    options.common.model = "-model";
    options.prompt = prompt;
    options.temperature = 0.1;
    options.top_p = 0.95;
    options.seed = 18446744073709551615u;
    options.stop_tokens = {2, 7};
    const GenerateOptions parsed = ParseGenerate(ToArguments(options));
    EXPECT_EQ(parsed.prompt, prompt);
    EXPECT_EQ(parsed.common.model, "-model");
    EXPECT_EQ(parsed.temperature, 0.1);
    EXPECT_EQ(parsed.top_p, 0.95);
    EXPECT_EQ(parsed.seed, options.seed);
    EXPECT_EQ(parsed.stop_tokens, options.stop_tokens);
  }
  GenerateOptions options;
  options.common.model = "m";
  options.prompt_tokens = {1, 2, 3};
  EXPECT_EQ(ParseGenerate(ToArguments(options)).prompt_tokens, options.prompt_tokens);
}

TEST(Options, RefusedByName) {
  const auto error = [](const std::vector<std::string>& arguments) -> std::string {
    try {
      ParseGenerate(arguments);
    } catch (const CLI::ParseError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error({"generate", "m", "--top-p=0"}), ::testing::HasSubstr("--top-p"));
  EXPECT_THAT(error({"generate", "m", "--top-p=1.5"}), ::testing::HasSubstr("--top-p"));
  EXPECT_THAT(error({"generate", "m", "--temperature=-1"}), ::testing::HasSubstr("--temperature"));
  EXPECT_THAT(error({"generate", "m", "--prompt-tokens=1,-2"}),
              ::testing::HasSubstr("--prompt-tokens"));
  EXPECT_THAT(error({"generate", "m", "--prompt=a", "--prompt-tokens=1"}),
              ::testing::HasSubstr("--prompt"));
  EXPECT_THAT(error({"generate", "m", "--ranks=0"}), ::testing::HasSubstr("--ranks"));
  EXPECT_THROW(ParseEval({"eval", "m"}), CLI::ParseError);
}

}  // namespace
}  // namespace fedshard::inference
