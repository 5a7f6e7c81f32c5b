// Watching one job to its end.
#pragma once

#include <string>

#include "cli/client.h"

namespace fedshard::cli {

// Watches the job until it ends, fails to be watched, or an interrupt comes; its last state in
// `last`. `show`: prints its progress.
Outcome FollowJob(Client& client, const std::string& id, bool show, v1::Job& last);

}  // namespace fedshard::cli
