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

// A rank's model with a way to abort it: Abort() may be called from any thread while another is
// inside the model, and makes its collectives throw.
class AbortableModel : public RankModel {
 public:
  virtual void Abort() = 0;
};

struct ModelInputs {
  const Settings* settings = nullptr;  // Must outlive the model.
  RankStart start;
  // Rendezvous inside the group and between groups.
  std::shared_ptr<collective::KeyValueClient> group_keys;
  std::shared_ptr<collective::KeyValueClient> federation_keys;
  // Called once the process groups exist and before anything else: registers Abort().
  std::function<void(AbortableModel&)> on_connected;
};

// Sets the threads of this process, checks the data, connects to the peers and initialises the
// weights. Throws Failure (BAD_TOKEN_FILE, BAD_MODEL, COLLECTIVE_FAILED).
std::unique_ptr<AbortableModel> MakeEngineModel(const ModelInputs& inputs);

// Whether `error` came out of a collective.
bool IsCollectiveError(const std::exception& error);

}  // namespace fedshard::trainer
