// Every script in tests/scenarios/*.txt: the outputs in the file are what the core does, byte for
// byte; the same commands applied again have the same effects; and the records alone lead to the
// same state. FEDSHARD_REWRITE_SCENARIOS=1 writes the outputs into the files instead of comparing
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/core/record.h"
#include "tests/scenarios/effects_text.h"
#include "tests/scenarios/script.h"

namespace fedshard::core {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> ScriptPaths() {
  const char* source = std::getenv("FEDSHARD_SOURCE");
  const std::filesystem::path folder =
      std::filesystem::path(source == nullptr ? "." : source) / "tests" / "scenarios";
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const bool script =
        entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt";
    if (script) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Applies the log to a fresh core; the text of all effects.
std::string EffectsOf(const std::vector<std::pair<Command, Instant>>& log,
                      const CoreOptions& options, std::string* state) {
  Core core(options);
  std::string text;
  for (const auto& [command, time] : log) {
    const Effects effects = core.Apply(command, time);
    for (const std::string& line : FormatEffects(effects)) text += line + "\n";
    for (const Record& record : effects.records) text += record.bytes;
    if (effects.wake_at_us) text += FormatSeconds(*effects.wake_at_us) + "\n";
  }
  *state = Serialize(core.state());
  return text;
}

void ExpectDeterministic(const Script& script) {
  std::string first_state, second_state;
  EXPECT_EQ(EffectsOf(script.log(), script.options(), &first_state),
            EffectsOf(script.log(), script.options(), &second_state));
  EXPECT_EQ(first_state, second_state);
  EXPECT_EQ(first_state, Serialize(script.core().state()));
}

void ExpectReplayable(const Script& script) {
  Core core(script.options());
  for (const Record& record : script.records()) {
    const auto decoded = DecodeRecord(record.bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const Effects effects = core.Apply(decoded->command, decoded->time);
    ASSERT_EQ(effects.records.size(), 1u) << RecordName(record) << " does not repeat itself";
    EXPECT_EQ(effects.records[0].bytes, record.bytes);
  }
  EXPECT_EQ(Serialize(core.state()), Serialize(script.core().state()));
}

TEST(Scenario, ThereAreAtLeastTwentyFive) { EXPECT_GE(ScriptPaths().size(), 25u); }

class ScenarioFile : public ::testing::TestWithParam<std::string> {};

TEST_P(ScenarioFile, HappensAsWritten) {
  const std::string text = ReadFile(GetParam());
  ASSERT_TRUE(absl::StartsWith(text, "# ")) << "the file must open with what it proves";
  Script script;
  const auto happened = script.Run(text);
  ASSERT_TRUE(happened.ok()) << GetParam() << ": " << happened.status();
  if (std::getenv("FEDSHARD_REWRITE_SCENARIOS") != nullptr) {
    std::ofstream(GetParam(), std::ios::binary) << *happened;
  } else {
    EXPECT_EQ(*happened, text) << "FEDSHARD_REWRITE_SCENARIOS=1 accepts what happened";
  }
  ExpectDeterministic(script);
  ExpectReplayable(script);
}

INSTANTIATE_TEST_SUITE_P(All, ScenarioFile, ::testing::ValuesIn(ScriptPaths()),
                         [](const auto& info) {
                           std::string name = std::filesystem::path(info.param).stem().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace fedshard::core
