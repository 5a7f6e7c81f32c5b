// A scripted worker: the client side of one Connect stream, driven by the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "coordinator/rpc/testing/test_coordinator.h"

namespace fedshard::rpc {

class FakeWorker {
 public:
  FakeWorker(v1::WorkerService::Stub& stub, std::string node, std::string incarnation, int slots)
      : stub_(stub), node_(std::move(node)), incarnation_(std::move(incarnation)), slots_(slots) {}

  // Opens a stream and registers; false when the coordinator refused, see Finish.
  bool Connect() {
    call_ = std::make_unique<Call>();
    stream_ = stub_.Connect(&call_->context);
    v1::ConnectRequest request;
    v1::Register& message = *request.mutable_register_();
    message.set_node_id(node_);
    message.set_incarnation(incarnation_);
    message.set_slots(slots_);
    message.set_data_address("127.0.0.1");
    message.set_version("test");
    message.set_coordinator_incarnation(coordinator_);
    message.set_last_directive(last_directive_);
    if (!stream_->Write(request)) return false;
    v1::ConnectResponse response;
    if (!stream_->Read(&response) || !response.has_registered()) return false;
    coordinator_ = response.registered().coordinator_incarnation();
    last_report_ = response.registered().last_report();
    return true;
  }
  // The next message, whatever it is; false at the end of the stream.
  bool Read(v1::ConnectResponse* response) { return stream_->Read(response); }
  // The next directive with a sequence number, which must be the next one; it counts as processed.
  v1::ConnectResponse NextDirective() {
    v1::ConnectResponse response;
    do {
      if (!stream_->Read(&response)) {
        ADD_FAILURE() << "the stream ended: " << stream_->Finish().error_message();
        return response;
      }
    } while (response.sequence() == 0);
    EXPECT_EQ(response.sequence(), last_directive_ + 1);
    last_directive_ = response.sequence();
    return response;
  }
  bool SendReport(v1::ConnectRequest request) {
    request.set_sequence(++last_report_);
    return stream_->Write(request);
  }
  bool Write(const v1::ConnectRequest& request) { return stream_->Write(request); }
  bool SendRankReport(const std::string& job, uint64_t generation, int rank,
                      const v1::RankReport& report) {
    v1::ConnectRequest request;
    v1::RankReported& message = *request.mutable_rank_reported();
    message.set_job(job);
    message.set_generation(generation);
    message.set_rank(rank);
    *message.mutable_report() = report;
    return SendReport(request);
  }
  bool SendExit(const std::string& job, uint64_t generation, int rank, int exit_code, int signal) {
    v1::ConnectRequest request;
    v1::RankExited& message = *request.mutable_rank_exited();
    message.set_job(job);
    message.set_generation(generation);
    message.set_rank(rank);
    message.set_exit_code(exit_code);
    message.set_signal(signal);
    return SendReport(request);
  }
  void Heartbeat() {
    v1::ConnectRequest request;
    request.mutable_heartbeat()->set_last_directive(last_directive_);
    EXPECT_TRUE(stream_->Write(request));
  }
  // Closes this side and reads to the end.
  grpc::Status Finish() {
    stream_->WritesDone();
    v1::ConnectResponse ignored;
    while (stream_->Read(&ignored)) {
    }
    return stream_->Finish();
  }
  // The status that the coordinator ended the stream with.
  grpc::Status WaitForEnd() {
    v1::ConnectResponse ignored;
    while (stream_->Read(&ignored)) {
    }
    return stream_->Finish();
  }
  void Break() {
    call_->context.TryCancel();
    Finish();
  }

  v1::ErrorDetail Detail() const { return call_->Detail(); }
  uint64_t last_report() const { return last_report_; }
  // As if nothing had been processed.
  void ForgetDirectives() { last_directive_ = 0; }

 private:
  v1::WorkerService::Stub& stub_;
  const std::string node_;
  const std::string incarnation_;
  const int slots_;
  std::string coordinator_;
  uint64_t last_directive_ = 0;
  uint64_t last_report_ = 0;
  std::unique_ptr<Call> call_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> stream_;
};

// A job that is valid in every field: two groups of two shards, two rounds of one step.
inline v1::JobSpec TestSpec(const std::string& id) {
  v1::JobSpec spec;
  spec.set_id(id);
  spec.mutable_model()->set_config_json(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,)"
      R"( "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,)"
      R"( "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64})");
  spec.mutable_model()->set_init(v1::MODEL_INIT_RANDOM);
  spec.mutable_model()->set_seed(1);
  spec.mutable_data()->set_train("/data/train.bin");
  spec.mutable_data()->set_validation("/data/validation.bin");
  spec.mutable_data()->set_sequence_length(16);
  spec.mutable_data()->set_order(v1::SAMPLE_ORDER_SHUFFLED);
  spec.mutable_mesh()->set_mode(v1::MESH_MODE_FL_FSDP);
  spec.mutable_mesh()->set_federation_groups(2);
  spec.mutable_mesh()->set_replicas(1);
  spec.mutable_mesh()->set_shards(2);
  v1::TrainingSpec& training = *spec.mutable_training();
  training.set_steps(2);
  training.set_micro_batch(2);
  training.set_accumulation(1);
  training.mutable_optimizer()->set_type(v1::OPTIMIZER_TYPE_ADAMW);
  training.mutable_optimizer()->set_learning_rate(1e-3);
  training.mutable_optimizer()->set_beta1(0.9);
  training.mutable_optimizer()->set_beta2(0.95);
  training.mutable_optimizer()->set_eps(1e-8);
  training.mutable_schedule()->set_type(v1::SCHEDULE_TYPE_CONSTANT);
  training.mutable_schedule()->set_final_ratio(1);
  spec.mutable_federation()->set_every_steps(1);
  spec.mutable_federation()->set_weighting(v1::WEIGHTING_TOKENS);
  spec.mutable_federation()->set_chunk_bytes(1 << 20);
  spec.mutable_evaluation()->set_sequences(4);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  spec.mutable_resources()->set_threads_per_rank(1);
  spec.mutable_resources()->set_collective_timeout_seconds(60);
  return spec;
}

}  // namespace fedshard::rpc
