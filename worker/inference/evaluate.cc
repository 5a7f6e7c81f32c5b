#include "worker/inference/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/trainer/evaluation_plan.h"

namespace fedshard::inference {

engine::LossSum EvaluateWindows(engine::InferenceEngine& engine, collective::Comm& comm,
                                const data::TokenFile& tokens, const EvaluationPlan& plan,
                                const std::function<void(int64_t windows)>& progress) {
  const int64_t batches = (plan.windows + plan.micro_batch - 1) / plan.micro_batch;
  const int64_t length = plan.sequence_length;
  std::vector<double> mine;
  int64_t calls = 0;
  for (const int64_t batch :
       trainer::EvaluationWindows({1, 1, comm.size()}, comm.rank(), batches)) {
    const int64_t first = std::max<int64_t>(batch, 0) * plan.micro_batch;
    const int64_t rows = std::min(plan.micro_batch, plan.windows - first);
    at::Tensor windows = at::empty({rows, length + 1}, at::kLong);
    for (int64_t row = 0; row < rows; ++row) {
      tokens.Read((first + row) * length, length + 1,
                  windows.mutable_data_ptr<int64_t>() + row * (length + 1));
    }
    const double loss = engine.Evaluate(windows).loss_sum;
    mine.push_back(batch < 0 ? 0 : loss);
    progress(std::min(plan.windows, ++calls * comm.size() * plan.micro_batch));
  }
  const std::vector<std::vector<double>> by_rank = comm.AllGatherScalars(mine);
  engine::LossSum sum;
  for (int64_t batch = 0; batch < batches; ++batch) {
    const double loss = by_rank[batch % comm.size()][batch / comm.size()];
    if (!std::isfinite(loss)) {
      const int64_t first = batch * plan.micro_batch;
      throw std::runtime_error(
          "the loss of windows " + std::to_string(first) + " to " +
          std::to_string(std::min(plan.windows, first + plan.micro_batch) - 1) + " is not finite");
    }
    sum.loss_sum += loss;
  }
  sum.tokens = plan.windows * length;
  return sum;
}

}  // namespace fedshard::inference
