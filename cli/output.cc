#include "cli/output.h"

#include <google/protobuf/util/json_util.h>
#include <yaml-cpp/yaml.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/quantity.h"

namespace fedshard::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

template <typename Message>
std::string Json(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = true;
  std::string text;
  // Fails only for malformed well-known types, which the coordinator does not make.
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// JSON is YAML; parsed and written again in block style.
std::string Yaml(const std::string& json) {
  YAML::Node node = YAML::Load(json);
  YAML::Emitter out;
  const std::function<void(YAML::Node)> block = [&block](YAML::Node part) {
    part.SetStyle(YAML::EmitterStyle::Block);
    if (part.IsMap()) {
      for (auto entry : part) block(entry.second);
    } else if (part.IsSequence()) {
      for (auto entry : part) block(entry);
    }
  };
  block(node);
  out << node;
  return std::string(out.c_str()) + "\n";
}

template <typename Message>
std::string ShowAs(const std::vector<Message>& messages, Format format, bool single,
                   const Rows& rows) {
  if (format == Format::kName) {
    std::string text;
    for (const Message& message : messages) absl::StrAppend(&text, message.name(), "\n");
    return text;
  }
  if (format == Format::kJson || format == Format::kYaml) {
    std::vector<std::string> items;
    for (const Message& message : messages) items.push_back(Json(message));
    const std::string json = single && items.size() == 1
                                 ? items[0]
                                 : absl::StrCat("[", absl::StrJoin(items, ",\n"), "]");
    return format == Format::kJson ? json + "\n" : Yaml(json);
  }
  return Table(rows);
}

std::string Percent(int64_t part, int64_t whole) {
  return whole > 0 ? absl::StrCat(100 * part / whole, "%") : "";
}

std::string LossText(double loss, bool known) { return known ? Fixed(loss, 4) : ""; }

}  // namespace

std::string Show(const std::vector<v1::Job>& jobs, Format format, bool single) {
  Rows rows = {{"NAME", "STATE", "REASON", "MESH", "STEP", "DONE", "LOSS", "TOKENS/S"}};
  if (format == Format::kWide)
    rows[0].insert(rows[0].end(), {"TOKENS", "ROUNDS", "CREATED", "MESSAGE"});
  for (const v1::Job& job : jobs) {
    const v1::JobProgress& p = job.progress();
    std::vector<std::string> row = {
        LastPart(job.name()),
        StateName(job.state()),
        job.reason(),
        MeshText(job.spec().mesh()),
        absl::StrCat(p.step(), "/", p.total_steps()),
        Percent(p.step(), p.total_steps()),
        LossText(p.loss(), p.step() > 0),
        p.tokens_per_second() > 0 ? ShortCount(p.tokens_per_second()) : ""};
    if (format == Format::kWide) {
      row.insert(row.end(),
                 {ShortCount(static_cast<double>(p.committed_tokens())),
                  absl::StrCat(p.rounds_committed(), "+", p.rounds_aborted(), " aborted"),
                  TimeText(job.create_time()), job.message()});
    }
    rows.push_back(row);
  }
  return ShowAs(jobs, format, single, rows);
}

std::string Show(const std::vector<v1::Node>& nodes, Format format) {
  Rows rows = {{"NAME", "STATE", "SLOTS", "USED", "HEARTBEAT", "ADDRESS"}};
  if (format == Format::kWide) rows[0].insert(rows[0].end(), {"VERSION", "LABELS", "REGISTERED"});
  for (const v1::Node& node : nodes) {
    std::vector<std::string> row = {LastPart(node.name()),
                                    StateName(node.state()),
                                    absl::StrCat(node.slots()),
                                    absl::StrCat(node.slots_used()),
                                    absl::StrCat(Fixed(node.heartbeat_age_seconds(), 1), "s ago"),
                                    node.data_address()};
    if (format == Format::kWide) {
      std::vector<std::string> labels;
      for (const v1::Label& label : node.labels()) {
        labels.push_back(absl::StrCat(label.key(), "=", label.value()));
      }
      row.insert(row.end(),
                 {node.version(), absl::StrJoin(labels, ","), TimeText(node.register_time())});
    }
    rows.push_back(row);
  }
  return ShowAs(nodes, format, false, rows);
}

std::string Show(const std::vector<v1::Group>& groups, Format format) {
  Rows rows = {{"GROUP", "STATE", "STEPS", "TOKENS", "RANKS"}};
  if (format == Format::kWide) rows[0].push_back("GENERATION");
  for (const v1::Group& group : groups) {
    std::vector<std::string> ranks;
    for (const v1::RankPlacement& rank : group.ranks()) {
      ranks.push_back(absl::StrCat(rank.rank(), "@", rank.node(), "/", rank.slot()));
    }
    std::vector<std::string> row = {LastPart(group.name()), StateName(group.state()),
                                    absl::StrCat(group.steps()), absl::StrCat(group.tokens()),
                                    absl::StrJoin(ranks, " ")};
    if (format == Format::kWide) row.push_back(absl::StrCat(group.generation()));
    rows.push_back(row);
  }
  return ShowAs(groups, format, false, rows);
}

std::string Show(const std::vector<v1::Round>& rounds, Format format) {
  Rows rows = {{"ROUND", "STATE", "GROUPS", "TOKENS", "DURATION", "DECISION", "VALIDATION"}};
  if (format == Format::kWide)
    rows[0].insert(rows[0].end(), {"ATTEMPT", "SAMPLES", "DECIDED", "MESSAGE"});
  for (const v1::Round& round : rounds) {
    int64_t tokens = 0;
    std::vector<std::string> samples;
    for (const v1::RoundParticipant& participant : round.participants()) {
      tokens += participant.tokens();
      samples.push_back(absl::StrCat("[", participant.first_sample(), ",",
                                     participant.first_sample() + participant.sample_count(), ")"));
    }
    std::vector<std::string> row = {absl::StrCat(round.number()),
                                    StateName(round.state()),
                                    absl::StrCat(round.participants_size()),
                                    absl::StrCat(tokens),
                                    absl::StrCat(Fixed(round.duration_seconds(), 2), "s"),
                                    absl::StrCat(Fixed(round.decision_seconds() * 1000, 1), "ms"),
                                    LossText(round.validation_loss(), round.has_validation_loss())};
    if (format == Format::kWide) {
      row.insert(row.end(), {absl::StrCat(round.attempt()), absl::StrJoin(samples, " "),
                             TimeText(round.decide_time()), round.message()});
    }
    rows.push_back(row);
  }
  return ShowAs(rounds, format, false, rows);
}

std::string Describe(const v1::Job& job, const std::vector<v1::Group>& groups,
                     const std::vector<v1::Round>& rounds) {
  const v1::JobProgress& p = job.progress();
  Rows facts = {{"Name:", LastPart(job.name())},
                {"UID:", job.uid()},
                {"State:", StateName(job.state())},
                {"Reason:", job.reason()},
                {"Message:", job.message()},
                {"Mesh:", MeshText(job.spec().mesh())},
                {"Created:", TimeText(job.create_time())},
                {"Started:", TimeText(job.start_time())},
                {"Ended:", TimeText(job.end_time())},
                {"Steps:", absl::StrCat(p.step(), " of ", p.total_steps())},
                {"Tokens:", absl::StrCat(p.committed_tokens(), " committed of ", p.total_tokens())},
                {"Rounds:", absl::StrCat(p.rounds_committed(), " committed, ", p.rounds_aborted(),
                                         " aborted")}};
  if (p.step() > 0) {
    facts.push_back({"Loss:", Fixed(p.loss(), 4)});
    facts.push_back({"Gradient norm:", Fixed(p.gradient_norm(), 4)});
    facts.push_back({"Learning rate:", absl::StrCat(p.learning_rate())});
  }
  if (p.has_validation_loss()) facts.push_back({"Validation loss:", Fixed(p.validation_loss(), 4)});
  if (p.skipped_steps() > 0) {
    facts.push_back({"Skipped steps:", absl::StrCat(p.skipped_steps(), ", not finite")});
  }
  if (!p.checkpoint().empty()) facts.push_back({"Checkpoint:", p.checkpoint()});
  if (job.spec().checkpoint().has_resume()) {
    facts.push_back({"Resumed from:", job.spec().checkpoint().resume().path()});
  }
  if (!job.result().parameter_hash().empty()) {
    facts.push_back({"Parameters:", absl::StrCat(job.result().parameters(), ", hash ",
                                                 job.result().parameter_hash())});
  }
  std::string text = Table(facts);
  Rows conditions = {{"CONDITION", "ACTIVE", "REASON", "SINCE", "MESSAGE"}};
  for (const v1::Condition& condition : job.conditions()) {
    conditions.push_back({condition.type(), condition.active() ? "yes" : "no", condition.reason(),
                          TimeText(condition.last_transition_time()), condition.message()});
  }
  absl::StrAppend(&text, "\n", Table(conditions));
  if (!groups.empty()) absl::StrAppend(&text, "\n", Show(groups, Format::kTable));
  if (!rounds.empty()) {
    constexpr size_t kShown = 10;
    const size_t from = rounds.size() > kShown ? rounds.size() - kShown : 0;
    absl::StrAppend(
        &text, "\n",
        from > 0 ? absl::StrCat("Last ", kShown, " of ", rounds.size(), " rounds:\n") : "",
        Show(std::vector<v1::Round>(rounds.begin() + static_cast<long>(from), rounds.end()),
             Format::kTable));
  }
  return text;
}

}  // namespace fedshard::cli
