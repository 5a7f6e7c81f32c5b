#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cli/quantity.h"
#include "cli/text.h"

namespace fedshard::cli {
namespace {

const char* ColorOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_COMPLETED:
      return "\x1b[32m";
    case v1::JOB_STATE_FAILED:
      return "\x1b[31m";
    case v1::JOB_STATE_RUNNING:
      return "\x1b[36m";
    default:
      return "\x1b[33m";
  }
}

std::string Cut(const std::string& text, int width) { return text.substr(0, std::max(0, width)); }

// The first line, without bytes that a terminal would act on: a message may quote a trainer's log.
std::string FirstLine(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = ' ';
  }
  return line;
}

std::string Bar(double part, int width) {
  const int full = std::clamp(static_cast<int>(part * width), 0, width);
  return std::string(full, '#') + std::string(width - full, '.');
}

std::string Numbers(const v1::JobProgress& p) {
  std::string text = absl::StrCat("loss ", p.step() > 0 ? Fixed(p.loss(), 4) : "-");
  if (p.has_validation_loss())
    absl::StrAppend(&text, "  validation ", Fixed(p.validation_loss(), 4));
  if (p.tokens_per_second() > 0)
    absl::StrAppend(&text, "  ", ShortCount(p.tokens_per_second()), " tokens/s");
  if (p.step() > 0) absl::StrAppend(&text, "  lr ", absl::StrCat(p.learning_rate()));
  return text;
}

}  // namespace

std::vector<std::string> RenderScreen(const v1::Job& job, const ScreenOptions& options) {
  const v1::JobProgress& p = job.progress();
  std::vector<std::string> lines;
  const std::string state = StateName(job.state());
  std::string title =
      Cut(absl::StrCat(LastPart(job.name()), "  ", state, "  ", MeshText(job.spec().mesh())),
          options.width);
  if (options.color) {
    if (const size_t at = title.find(state); at != std::string::npos) {
      title.insert(at + state.size(), "\x1b[0m");
      title.insert(at, ColorOf(job.state()));
    }
  }
  lines.push_back(title);
  const double part = p.total_steps() > 0
                          ? static_cast<double>(p.step()) / static_cast<double>(p.total_steps())
                          : 0;
  const std::string steps =
      absl::StrCat(" step ", p.step(), "/", p.total_steps(), "  round ", p.rounds_committed(),
                   p.has_eta_seconds() && !HasEnded(job.state())
                       ? absl::StrCat("  ETA ", ShortSeconds(p.eta_seconds()))
                       : "");
  const int bar = std::clamp(options.width - static_cast<int>(steps.size()) - 2, 0, 40);
  lines.push_back(
      Cut(bar >= 5 ? absl::StrCat("[", Bar(part, bar), "]", steps) : steps, options.width));
  lines.push_back(Cut(Numbers(p), options.width));
  if (p.groups_size() > 1) {
    constexpr int kShown = 8;
    for (int i = 0; i < std::min(p.groups_size(), kShown); ++i) {
      const v1::GroupProgress& group = p.groups(i);
      lines.push_back(Cut(absl::StrCat("  group ", group.group(), "  step ", group.step(),
                                       "  loss ", group.step() > 0 ? Fixed(group.loss(), 4) : "-",
                                       "  ", StateName(group.state())),
                          options.width));
    }
    if (p.groups_size() > kShown) {
      lines.push_back(
          Cut(absl::StrCat("  and ", p.groups_size() - kShown, " more groups"), options.width));
    }
  }
  if (!job.message().empty()) lines.push_back(Cut(FirstLine(job.message()), options.width));
  return lines;
}

std::string RenderChange(const v1::Job& before, const v1::Job& now) {
  const v1::JobProgress& p = now.progress();
  if (before.state() != now.state() || before.reason() != now.reason()) {
    return absl::StrCat(LastPart(now.name()), " ", StateName(now.state()), ": ",
                        now.message().empty() ? now.reason() : now.message());
  }
  const bool round = before.progress().rounds_committed() != p.rounds_committed();
  const bool evaluated =
      p.has_validation_loss() && (!before.progress().has_validation_loss() ||
                                  before.progress().validation_loss() != p.validation_loss());
  if (!round && !evaluated) return "";
  return absl::StrCat(
      "round ", p.rounds_committed(), "  step ", p.step(), "/", p.total_steps(), "  ", Numbers(p),
      p.has_eta_seconds() ? absl::StrCat("  ETA ", ShortSeconds(p.eta_seconds())) : "");
}

ProgressPrinter::ProgressPrinter(bool live, ScreenOptions options)
    : live_(live), options_(options) {}

void ProgressPrinter::Show(const v1::Job& job) {
  if (!live_) {
    const std::string line = RenderChange(last_, job);
    if (!line.empty()) fprintf(stderr, "%s\n", line.c_str());
    last_ = job;
    return;
  }
  std::string frame;
  if (lines_drawn_ > 0) frame = absl::StrCat("\x1b[", lines_drawn_, "A");
  const auto lines = RenderScreen(job, options_);
  for (const std::string& line : lines) absl::StrAppend(&frame, "\x1b[2K", line, "\n");
  absl::StrAppend(&frame, "\x1b[0J");  // A shorter screen leaves nothing below.
  fputs(frame.c_str(), stderr);
  lines_drawn_ = lines.size();
}

bool IsLiveTerminal() {
  const char* term = getenv("TERM");
  return isatty(STDERR_FILENO) && term != nullptr && strcmp(term, "dumb") != 0;
}

ScreenOptions TerminalOptions() {
  ScreenOptions options;
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) options.width = size.ws_col;
  const char* no_color = getenv("NO_COLOR");
  options.color = IsLiveTerminal() && (no_color == nullptr || *no_color == 0);
  return options;
}

}  // namespace fedshard::cli
