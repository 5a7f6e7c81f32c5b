#include "coordinator/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/rpc/listen_address.h"

namespace fedshard::rpc {
namespace {

constexpr int kKeepaliveTimeMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
// Clients ping every 30 s or less often; the default limit of 5 minutes would cut them off.
constexpr int kMinPingIntervalMs = 10'000;
constexpr int kMaxMetadataBytes = 16 << 10;

void Configure(grpc::ServerBuilder& builder) {
  // With the default, a second coordinator on the same port starts and steals connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
}

}  // namespace

Server::Server(ServerOptions options, service::Service* service, const Clock* clock)
    : options_(std::move(options)), jobs_(service), workers_(service, clock) {}

Server::~Server() { Stop(std::chrono::milliseconds(0)); }

absl::Status Server::Start() {
  ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(options_.listen));
  // Process-wide switches of gRPC, read when a server is built.
  grpc::EnableDefaultHealthCheckService(true);
  if (options_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  Configure(builder);
  int port = 0;
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&jobs_);
  builder.RegisterService(&workers_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    server_.reset();
    RETURN_IF_ERROR(ProbeAddress(address));
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address.ToString()));
  }
  address.port = static_cast<uint16_t>(port);
  address_ = address.ToString();
  return absl::OkStatus();
}

void Server::Drain() {
  if (server_ != nullptr && server_->GetHealthCheckService() != nullptr) {
    server_->GetHealthCheckService()->SetServingStatus(false);
  }
}

void Server::Stop(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
  server_.reset();
}

}  // namespace fedshard::rpc
