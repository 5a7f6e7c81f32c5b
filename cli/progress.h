// What `watch` and `local run` show of a job: a live screen on a terminal, plain lines elsewhere.
// Rendering is pure; printing goes to standard error, so that standard output stays for data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fedshard/v1/job.pb.h"

namespace fedshard::cli {

struct ScreenOptions {
  int width = 80;
  bool color = false;
};

// The lines of the screen, none wider than `width` visible characters.
std::vector<std::string> RenderScreen(const v1::Job& job, const ScreenOptions& options);

// A line for what changed between two views of a job, empty when nothing worth a line did: state
// changes, committed rounds, evaluations.
std::string RenderChange(const v1::Job& before, const v1::Job& now);

// Prints successive views of one job.
class ProgressPrinter {
 public:
  // `live`: redraw in place.
  ProgressPrinter(bool live, ScreenOptions options);
  void Show(const v1::Job& job);

 private:
  const bool live_;
  const ScreenOptions options_;
  v1::Job last_;
  size_t lines_drawn_ = 0;
};

// Standard error is a terminal that can redraw.
bool IsLiveTerminal();
// Terminal width and whether to use colour (NO_COLOR, TERM=dumb).
ScreenOptions TerminalOptions();

}  // namespace fedshard::cli
