#include "worker/daemon/trainer_server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fedshard::daemon {
namespace {

const grpc::Status kNotOurs(grpc::StatusCode::PERMISSION_DENIED,
                            "the token is not of a trainer that this worker started");

// Relayed calls end with their caller's: when it goes away or its deadline passes. A caller without
// a deadline gets one.
std::unique_ptr<grpc::ClientContext> Onward(const grpc::ServerContext& caller) {
  auto context = grpc::ClientContext::FromServerContext(caller);
  const auto latest = std::chrono::system_clock::now() + std::chrono::minutes(10);
  context->set_deadline(std::min(caller.deadline(), latest));
  return context;
}

}  // namespace

TrainerServer::TrainerServer(RankSessions& sessions, std::shared_ptr<grpc::Channel> channel,
                             Callbacks callbacks)
    : sessions_(sessions),
      coordinator_(v1::WorkerService::NewStub(channel)),
      callbacks_(std::move(callbacks)) {}

absl::StatusOr<std::unique_ptr<TrainerServer>> TrainerServer::Start(
    const std::string& socket_path, RankSessions& sessions, std::shared_ptr<grpc::Channel> channel,
    Callbacks callbacks) {
  std::unique_ptr<TrainerServer> service(
      new TrainerServer(sessions, std::move(channel), std::move(callbacks)));
  const std::string folder = std::filesystem::path(socket_path).parent_path();
  service->lock_fd_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (service->lock_fd_ < 0 || flock(service->lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(
        errno == EWOULDBLOCK ? absl::StrCat(folder, " is in use by another worker")
                             : absl::StrCat("cannot lock ", folder, ": ", strerror(errno)));
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix:", socket_path), grpc::InsecureServerCredentials());
  builder.RegisterService(service.get());
  service->server_ = builder.BuildAndStart();
  if (service->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", socket_path));
  }
  chmod(socket_path.c_str(), 0600);
  return service;
}

TrainerServer::~TrainerServer() {
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_->Wait();
  }
  if (lock_fd_ >= 0) close(lock_fd_);
}

grpc::Status TrainerServer::Attach(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) {
  v1::AttachRequest request;
  if (!stream->Read(&request) || !request.has_hello()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the first report must be Hello"};
  }
  const auto session = sessions_.Attach(request.hello().token());
  if (!session) return kNotOurs;
  const TrainerId id = session->id;
  callbacks_.on_alive(id);
  std::thread writer([&] {
    while (const auto directive = session->mailbox->Pop()) {
      if (!stream->Write(*directive)) break;
    }
    // The process is gone, or does not read: end the reader as well.
    context->TryCancel();
  });
  while (stream->Read(&request)) {
    callbacks_.on_alive(id);
    if (request.has_rank_report()) callbacks_.on_report(id, request.rank_report());
  }
  session->mailbox->Close();
  writer.join();
  return grpc::Status::OK;
}

grpc::Status TrainerServer::SetTrainerKey(grpc::ServerContext* context,
                                          const v1::SetTrainerKeyRequest* request,
                                          v1::SetTrainerKeyResponse*) {
  const auto id = sessions_.Find(request->token());
  if (!id) return kNotOurs;
  callbacks_.on_alive(*id);
  v1::SetRendezvousKeyRequest onward;
  onward.set_job(id->job);
  onward.set_scope(request->scope());
  onward.set_key(request->key());
  onward.set_value(request->value());
  v1::SetRendezvousKeyResponse response;
  return coordinator_->SetRendezvousKey(Onward(*context).get(), onward, &response);
}

grpc::Status TrainerServer::GetTrainerKeys(grpc::ServerContext* context,
                                           const v1::GetTrainerKeysRequest* request,
                                           v1::GetTrainerKeysResponse* response) {
  const auto id = sessions_.Find(request->token());
  if (!id) return kNotOurs;
  callbacks_.on_alive(*id);
  v1::GetRendezvousKeysRequest onward;
  onward.set_job(id->job);
  onward.set_scope(request->scope());
  *onward.mutable_keys() = request->keys();
  v1::GetRendezvousKeysResponse values;
  const grpc::Status status =
      coordinator_->GetRendezvousKeys(Onward(*context).get(), onward, &values);
  *response->mutable_values() = values.values();
  return status;
}

}  // namespace fedshard::daemon
