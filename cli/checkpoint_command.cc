#include "cli/checkpoint_command.h"

#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/checkpoint_diff.h"
#include "cli/exit_codes.h"
#include "cli/quantity.h"
#include "cli/text.h"
#include "common/clock.h"
#include "common/spec/model_config_json.h"
#include "worker/checkpoint/compare.h"
#include "worker/checkpoint/merge.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/shard_description.h"

namespace fedshard::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointEntry;
using checkpoint::CheckpointReader;
using checkpoint::FileCheck;
using checkpoint::Manifest;
using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

int Fail(const absl::Status& status) {
  std::cerr << "fedshard: " << std::string(status.message()) << "\n";
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kAlreadyExists:
      return kExitRefused;
    default:
      return kExitFailed;
  }
}

std::string NameOf(const std::string& path) { return fs::path(path).filename().string(); }

int64_t BytesOf(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const checkpoint::ManifestFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

// "3m 07s" since an RFC 3339 time; empty when it is none.
std::string AgeOf(const std::string& created) {
  tm utc{};
  const char* rest = strptime(created.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  if (rest == nullptr) return "";
  const auto now = static_cast<double>(SystemClock().Now().wall_us) / 1e6;
  return ShortSeconds(std::max(0.0, now - static_cast<double>(timegm(&utc))));
}

struct Listed {
  std::string name;
  std::string path;
  absl::Status status;
  Manifest manifest;  // When it could be read.
};

std::vector<Listed> Look(const std::vector<CheckpointEntry>& entries) {
  std::vector<Listed> listed;
  for (const CheckpointEntry& entry : entries) {
    const auto reader = CheckpointReader::Open(entry.path);
    Listed one{NameOf(entry.path), entry.path, reader.status(), {}};
    if (reader.ok()) one.manifest = (*reader)->manifest();
    listed.push_back(std::move(one));
  }
  return listed;
}

json ToJson(const Listed& one) {
  json object = {
      {"name", one.name}, {"path", one.path}, {"state", one.status.ok() ? "complete" : "damaged"}};
  if (!one.status.ok()) {
    object["error"] = std::string(one.status.message());
    return object;
  }
  const Manifest& m = one.manifest;
  object.update({{"job", m.job},
                 {"step", m.step},
                 {"tokens", m.tokens},
                 {"mesh",
                  {{"federation_groups", m.mesh.groups},
                   {"replicas", m.mesh.replicas},
                   {"shards", m.mesh.shards}}},
                 {"bytes", BytesOf(m)},
                 {"created", m.created},
                 {"version", m.version}});
  return object;
}

std::string ListTable(const std::vector<Listed>& listed,
                      const std::vector<std::string>& unfinished) {
  Rows rows = {{"NAME", "JOB", "STEP", "TOKENS", "MESH", "SIZE", "AGE", "STATE"}};
  for (const Listed& one : listed) {
    if (!one.status.ok()) {
      rows.push_back({one.name, "", "", "", "", "", "", "damaged"});
      continue;
    }
    const Manifest& m = one.manifest;
    rows.push_back({one.name, m.job, absl::StrCat(m.step), absl::StrCat(m.tokens), MeshText(m.mesh),
                    ShortBytes(BytesOf(m)), AgeOf(m.created), "complete"});
  }
  for (const std::string& name : unfinished) {
    rows.push_back({name, "", "", "", "", "", "", "unfinished"});
  }
  return Table(rows);
}

// Whether intact files hold the whole model of the manifest's configuration; a configuration that
// is not understood here proves nothing.
absl::Status CheckWhole(const std::string& path, std::string& note) {
  const auto reader = CheckpointReader::Open(path);
  if (!reader.ok()) return reader.status();
  const Manifest& manifest = (*reader)->manifest();
  const auto model = ParseModelConfig(manifest.model_config);
  if (!model.ok()) {
    note = absl::StrCat("not checked: ", std::string(model.status().message()));
    return absl::OkStatus();
  }
  for (const std::string& kind : (*reader)->Kinds()) {
    const absl::Status status = checkpoint::CheckModel(manifest, *model, kind);
    if (!status.ok()) return status;
  }
  note = "whole";
  return absl::OkStatus();
}

// Prints one checkpoint's files; false when something is wrong.
absl::StatusOr<bool> VerifyOne(const std::string& path) {
  const auto files = checkpoint::CheckFiles(path);
  if (!files.ok()) return files.status();
  Rows rows;
  bool good = true;
  for (const FileCheck& check : *files) {
    good = good && check.status.ok();
    const std::string where = absl::StrCat(path, "/", check.name, ": ");
    rows.push_back(
        {"  " + check.name, check.bytes > 0 ? ShortBytes(check.bytes) : "",
         check.status.ok() ? "ok" : std::string(absl::StripPrefix(check.status.message(), where))});
  }
  if (good) {
    std::string note;
    const absl::Status whole = CheckWhole(path, note);
    good = whole.ok();
    rows.push_back({"  (model)", "", good ? note : std::string(whole.message())});
  }
  std::cout << path << ": " << (good ? "good" : "DAMAGED") << "\n" << Table(rows);
  return good;
}

// The checkpoint itself, or those of a directory.
absl::StatusOr<std::vector<std::string>> CheckpointsAt(const std::string& path) {
  const std::string plain =
      fs::path(path + "/").parent_path().string();  // Without a slash at the end.
  std::error_code ignored;
  const bool is_one = checkpoint::StepOfName(NameOf(plain)).has_value() ||
                      fs::exists(fs::path(plain) / checkpoint::kManifestName, ignored);
  if (is_one) return std::vector<std::string>{plain};
  const auto entries = checkpoint::ListCheckpoints(plain);
  if (!entries.ok()) return entries.status();
  if (entries->empty()) return absl::NotFoundError(absl::StrCat(plain, ": has no checkpoints"));
  std::vector<std::string> paths;
  for (const CheckpointEntry& entry : *entries) paths.push_back(entry.path);
  return paths;
}

}  // namespace

int RunCheckpointList(const std::string& directory, bool as_json) {
  const auto entries = checkpoint::ListCheckpoints(directory);
  if (!entries.ok()) return Fail(entries.status());
  const auto unfinished = checkpoint::ListUnfinished(directory);
  if (!unfinished.ok()) return Fail(unfinished.status());
  const std::vector<Listed> listed = Look(*entries);
  if (as_json) {
    json list = json::array();
    for (const Listed& one : listed) list.push_back(ToJson(one));
    for (const std::string& name : *unfinished) {
      list.push_back({{"name", name}, {"path", directory + "/" + name}, {"state", "unfinished"}});
    }
    std::cout << list.dump(2, ' ', false, json::error_handler_t::replace) << "\n";
  } else {
    std::cout << ListTable(listed, *unfinished);
  }
  for (const Listed& one : listed) {
    if (!one.status.ok()) std::cerr << std::string(one.status.message()) << "\n";
  }
  return kExitDone;
}

int RunCheckpointVerify(const std::string& path) {
  const auto paths = CheckpointsAt(path);
  if (!paths.ok()) return Fail(paths.status());
  bool all_good = true;
  for (const std::string& one : *paths) {
    const auto good = VerifyOne(one);
    if (!good.ok()) return Fail(good.status());
    all_good = all_good && *good;
  }
  return all_good ? kExitDone : kExitFailed;
}

int RunCheckpointDiff(const std::string& a, const std::string& b, bool all, bool as_json) {
  const auto reader_a = CheckpointReader::Open(a);
  if (!reader_a.ok()) return Fail(reader_a.status());
  const auto reader_b = CheckpointReader::Open(b);
  if (!reader_b.ok()) return Fail(reader_b.status());
  const auto differences = checkpoint::Compare(**reader_a, **reader_b);
  if (!differences.ok()) return Fail(differences.status());
  const Manifest& of_a = (*reader_a)->manifest();
  const Manifest& of_b = (*reader_b)->manifest();
  std::cout << ShowDiff(of_a, of_b, *differences, all, as_json);
  return SameState(of_a, of_b, *differences) ? kExitDone : kExitFailed;
}

int RunCheckpointMerge(const std::string& path, int32_t group, const std::string& out) {
  const auto reader = CheckpointReader::Open(path);
  if (!reader.ok()) return Fail(reader.status());
  const auto merged = checkpoint::Merge(**reader, group, out);
  if (!merged.ok()) return Fail(merged.status());
  std::cout << *merged << "\n";
  return kExitDone;
}

void AddCheckpoint(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string path, other, out;
    std::string output = "table";
    int32_t group = 0;
    bool all = false;
  };
  auto a = std::make_shared<Arguments>();
  const auto add_output = [a](CLI::App* command) {
    command->add_option("-o,--output", a->output, "Output format")
        ->check(CLI::IsMember({"table", "json"}))
        ->capture_default_str();
  };
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Look after checkpoints on disk");
  checkpoint->require_subcommand(1);
  CLI::App* list = checkpoint->add_subcommand("list", "The checkpoints of a job's directory");
  list->add_option("DIR", a->path, "The directory")->required();
  add_output(list);
  list->callback([a, &exit_code] { exit_code = RunCheckpointList(a->path, a->output == "json"); });

  CLI::App* verify = checkpoint->add_subcommand("verify", "Read everything, check every checksum");
  verify->add_option("PATH", a->path, "A checkpoint, or a directory of them")->required();
  verify->callback([a, &exit_code] { exit_code = RunCheckpointVerify(a->path); });

  CLI::App* diff = checkpoint->add_subcommand("diff", "What differs, parameter by parameter");
  diff->add_option("A", a->path, "A checkpoint")->required();
  diff->add_option("B", a->other, "Another, of any mesh")->required();
  diff->add_flag("--all", a->all, "Show tensors with equal bits too");
  add_output(diff);
  diff->callback([a, &exit_code] {
    exit_code = RunCheckpointDiff(a->path, a->other, a->all, a->output == "json");
  });

  CLI::App* merge = checkpoint->add_subcommand("merge", "Write the same state as a single file");
  merge->add_option("CHECKPOINT", a->path, "A checkpoint")->required();
  merge->add_option("--out", a->out, "The directory to write it to")->required();
  merge->add_option("--group", a->group, "Whose optimizer state, where each group has its own")
      ->capture_default_str();
  merge->callback([a, &exit_code] { exit_code = RunCheckpointMerge(a->path, a->group, a->out); });
}

}  // namespace fedshard::cli
