// RankModel over the engine, the averager and token files.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/collective/key_value.h"
#include "worker/trainer/control.h"
#include "worker/trainer/rank_model.h"
#include "worker/trainer/settings.h"

namespace fedshard::trainer {

struct ModelInputs {
  const Settings* settings = nullptr;  // Must outlive the model.
  RankStart start;
  // Rendezvous inside the group and between groups.
  std::shared_ptr<collective::KeyValueClient> group_keys;
  std::shared_ptr<collective::KeyValueClient> federation_keys;
  // Called once the process groups exist, with what aborts them: to be called from any thread, as
  // long as it is kept, and makes the model's collectives throw.
  std::function<void(std::function<void()> abort)> on_connected;
};

// Sets the threads of this process, checks the data, connects to the peers and initialises the
// weights. Throws Failure (BAD_TOKEN_FILE, NO_GPU) and what AsFailure understands.
std::unique_ptr<RankModel> MakeEngineModel(const ModelInputs& inputs);

// What to report of an error that left the model: COLLECTIVE_FAILED or INTERNAL, in a few words.
Failure AsFailure(const std::exception& error);

}  // namespace fedshard::trainer
