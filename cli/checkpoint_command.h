// fedshard checkpoint list|verify|diff|merge: works on the files alone, without a coordinator. Each
// returns the exit code; data goes to standard output, errors to standard error.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace fedshard::cli {

// One row per checkpoint of a job's directory. Files are checked for their sizes only.
int RunCheckpointList(const std::string& directory, bool json);
// Reads every byte of one checkpoint, or of all in a directory. 1: something is wrong.
int RunCheckpointVerify(const std::string& path);
// 0: same state; 1: not the same. `all`: parameters without a difference too.
int RunCheckpointDiff(const std::string& a, const std::string& b, bool all, bool json);
// Writes one file with the state of `group` below `out`.
int RunCheckpointMerge(const std::string& path, int32_t group, const std::string& out);

// `exit_code` is set when a command runs; it outlives the parsing.
void AddCheckpoint(CLI::App& app, int& exit_code);

}  // namespace fedshard::cli
