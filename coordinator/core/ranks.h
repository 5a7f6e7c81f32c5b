// Ranks: who reports, failures and exits.
#pragma once

#include "coordinator/core/transition.h"

namespace fedshard::core {

// A report's sender, resolved. `job` is nullptr when the report is stale: an event says why and
// nothing else happens.
struct Sender {
  Job* job = nullptr;
  Group* group = nullptr;
  Rank* rank = nullptr;
};

// A report is also a sign of life of its node.
Sender Resolve(Transition& t, const RankId& from);

void HandleRankFailure(Transition& t, const RankFailure& command);
void HandleRankExited(Transition& t, const RankExited& command);

}  // namespace fedshard::core
