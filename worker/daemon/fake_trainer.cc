// A stand-in for fedshard-trainer in daemon_test: attaches, does what its job's model seed says,
// and exits.
//
//   * seed 0: reports its rank as a summary hash, echoes the rounds of decisions as votes, and
//   exits
//     with 0 at a finish
//   * seed 1: exits with 7 at once, after a line of output
//   * seed 2: reports a failure, then exits with 3
//   * seed 3: as seed 0, but ignores Stop and TERM
//   * seed 4: sets and gets a rendezvous key, reports the value as a summary hash, then as seed 0
//   * seed 5: exits with 7 at once, after a line of bytes that are no UTF-8
//   * seed 6: reports 6000 steps, then as seed 0
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "fedshard/v1/trainer_service.grpc.pb.h"

namespace {

namespace v1 = fedshard::v1;
using Stream = grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>;

std::string Rendezvous(v1::TrainerService::Stub& stub, const std::string& token, int rank) {
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
  grpc::ClientContext set, get;
  set.set_deadline(deadline);
  get.set_deadline(deadline);
  v1::SetTrainerKeyRequest key;
  key.set_token(token);
  key.set_scope("g1");
  key.set_key("rank" + std::to_string(rank));
  key.set_value("value" + std::to_string(rank));
  v1::SetTrainerKeyResponse done;
  stub.SetTrainerKey(&set, key, &done);
  v1::GetTrainerKeysRequest keys;
  keys.set_token(token);
  keys.set_scope("g1");
  keys.add_keys("rank" + std::to_string(1 - rank));
  v1::GetTrainerKeysResponse values;
  const grpc::Status status = stub.GetTrainerKeys(&get, keys, &values);
  return status.ok() ? values.values(0) : status.error_message();
}

int Run(Stream& stream, v1::TrainerService::Stub& stub, const std::string& token) {
  v1::AttachRequest report;
  report.mutable_hello()->set_token(token);
  stream.Write(report);
  v1::AttachResponse directive;
  if (!stream.Read(&directive) || !directive.has_start()) return 90;
  const uint64_t behaviour = directive.start().spec().model().seed();
  const int rank = directive.start().rank();
  if (behaviour == 1) {
    puts("about to fail");
    return 7;
  }
  if (behaviour == 5) {
    puts("bytes \xFF\xFE");
    return 7;
  }
  if (behaviour == 2) {
    report.mutable_rank_report()->mutable_failure()->set_reason("NON_FINITE_LOSS");
    report.mutable_rank_report()->mutable_failure()->set_message("step 3");
    stream.Write(report);
    stream.WritesDone();
    stream.Finish();
    return 3;
  }
  if (behaviour == 3) signal(SIGTERM, SIG_IGN);
  for (int step = 0; behaviour == 6 && step < 6000; ++step) {
    report.mutable_rank_report()->mutable_steps();
    stream.Write(report);
  }
  report.mutable_rank_report()->mutable_summary()->set_parameter_hash(
      behaviour == 4 ? Rendezvous(stub, token, rank) : "rank" + std::to_string(rank));
  stream.Write(report);
  while (stream.Read(&directive)) {
    if (directive.has_stop() && behaviour != 3) return 5;
    if (!directive.rank_directive().has_decision()) continue;
    report.mutable_rank_report()->mutable_vote()->set_round(
        directive.rank_directive().decision().round());
    stream.Write(report);
    if (directive.rank_directive().decision().finish()) {
      stream.WritesDone();
      stream.Finish();
      return 0;
    }
  }
  if (behaviour == 3) {
    while (true) pause();
  }
  return 4;
}

}  // namespace

int main(int, char** argv) {
  const std::string socket = argv[2];  // --socket PATH
  const char* token = getenv("FEDSHARD_TRAINER_TOKEN");
  const auto stub = v1::TrainerService::NewStub(
      grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Attach(&context);
  const int code = Run(*stream, *stub, token == nullptr ? "" : token);
  fflush(stdout);
  _exit(code);
}
