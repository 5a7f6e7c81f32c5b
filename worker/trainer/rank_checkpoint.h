// One rank's part in its job's checkpoints: what it stores of the engine and the averager, and how
// it takes that up again. Owned and used by the training thread; the writer below has a thread of
// its own. Replica 0 of each group stores; group 0 also stores what all groups have in common.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "worker/checkpoint/writer.h"
#include "worker/engine/engine.h"
#include "worker/federation/averager.h"
#include "worker/trainer/control.h"
#include "worker/trainer/settings.h"

namespace fedshard::trainer {

class RankCheckpoint {
 public:
  // `averager` may be null. All of them must outlive this.
  RankCheckpoint(const Settings& settings, const RankStart& start, engine::Engine& engine,
                 federation::Averager* averager);
  ~RankCheckpoint();

  // Fills engine and averager from the checkpoint in folder `path`, whatever mesh wrote it. Throws
  // Failure (BAD_CHECKPOINT) that names what is wrong.
  void Load(const std::string& path);
  // Copies the state and begins to write. Nothing when the job has no checkpoint directory.
  void Save(const CheckpointOrder& order);
  // See RankModel.
  std::vector<CheckpointOutcome> Outcomes(bool wait);

 private:
  checkpoint::WriterOptions Options(const RankStart& start) const;
  std::vector<checkpoint::TensorToStore> Tensors();
  void Store(const std::string& kind, const std::vector<at::Tensor>& tensors,
             std::vector<checkpoint::TensorToStore>& out);

  const Settings& settings_;
  const std::string job_;
  const MeshCoordinates at_;
  engine::Engine& engine_;
  federation::Averager* const averager_;
  std::vector<at::Tensor> staged_;  // Host copies of device tensors while the writer copies them.

  Mutex mu_;
  std::vector<CheckpointOutcome> outcomes_ GUARDED_BY(mu_);
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;  // After what its callback uses.
};

}  // namespace fedshard::trainer
