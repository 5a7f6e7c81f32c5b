#include "coordinator/metrics/http_server.h"

#include <CivetServer.h>

#include <functional>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "coordinator/metrics/render.h"

namespace fedshard::metrics {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kMetricsText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";

struct Response {
  int code = 200;
  std::string type;
  std::string body;
};

const char* ReasonPhrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    default:
      return "Service Unavailable";
  }
}

// A page that answers GET and HEAD at exactly one path: civetweb also routes everything below it
// here.
class PageHandler : public CivetHandler {
 public:
  PageHandler(std::string path, std::function<Response()> make)
      : path_(std::move(path)), make_(std::move(make)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    return Write(connection, true);
  }
  bool handleHead(CivetServer*, mg_connection* connection) override {
    return Write(connection, false);
  }

 private:
  bool Write(mg_connection* connection, bool with_body) {
    const bool here = mg_get_request_info(connection)->local_uri == path_;
    const Response response = here ? make_() : Response{404, kText, "there is no such page\n"};
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
              "Connection: close\r\n\r\n",
              response.code, ReasonPhrase(response.code), response.type.c_str(),
              response.body.size());
    if (with_body) mg_write(connection, response.body.data(), response.body.size());
    return true;
  }

  const std::string path_;
  const std::function<Response()> make_;
};

std::string LandingPage() {
  return absl::StrCat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>fedshard</title>"
      "</head><body><h1>fedshard coordinator</h1><p>Version ",
      ProjectVersion(), " (", Revision(),
      ")</p><ul><li><a href=\"/metrics\">/metrics</a>: for Prometheus</li>"
      "<li><a href=\"/healthz\">/healthz</a>: the process lives</li>"
      "<li><a href=\"/readyz\">/readyz</a>: it takes requests</li></ul></body></html>\n");
}

}  // namespace

HttpServer::HttpServer(HttpServerOptions options, service::Service* service)
    : options_(std::move(options)), service_(service) {}

HttpServer::~HttpServer() { Stop(); }

absl::Status HttpServer::Start() {
  const std::vector<std::pair<std::string, std::function<Response()>>> pages = {
      {"/metrics",
       [this] {
         const absl::StatusOr<Snapshot> snapshot = Ask();
         if (snapshot.ok()) return Response{200, kMetricsText, Render(*snapshot)};
         return Response{503, kText, absl::StrCat(snapshot.status().message(), "\n")};
       }},
      {"/healthz",
       [] {
         return Response{200, kText, "ok\n"};
       }},
      {"/readyz",
       [this] {
         return service_->healthy() ? Response{200, kText, "ok\n"}
                                    : Response{503, kText, "not taking requests\n"};
       }},
      {"/", [] {
         return Response{200, kHtml, LandingPage()};
       }}};
  try {
    server_ = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", options_.listen, "num_threads", "4", "request_timeout_ms", "10000"});
  } catch (const CivetException& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options_.listen, ": ", error.what()));
  }
  for (const auto& [path, make] : pages) {
    handlers_.push_back(std::make_unique<PageHandler>(path, make));
    server_->addHandler(path, handlers_.back().get());
  }
  const std::vector<int> ports = server_->getListeningPorts();
  port_ = ports.at(0);
  address_ = absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", ports.at(0));
  return absl::OkStatus();
}

// civetweb looks at its stop flag only when a connection comes or every two seconds: connections
// make it look.
void HttpServer::Stop() {
  if (server_ == nullptr) return;
  std::future<void> stopped = std::async(std::launch::async, [this] { server_.reset(); });
  const std::string host = options_.listen.substr(0, options_.listen.rfind(':'));
  while (stopped.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    char ignored[256];
    mg_close_connection(mg_connect_client(host.c_str(), port_, 0, ignored, sizeof ignored));
  }
}

absl::StatusOr<Snapshot> HttpServer::Ask() const {
  // Shared: the loop may answer after this thread has given up.
  auto answer = std::make_shared<std::promise<absl::StatusOr<Snapshot>>>();
  std::future<absl::StatusOr<Snapshot>> future = answer->get_future();
  service_->Query([answer, start = service_->start_time(), retention_us = options_.retention_us](
                      const absl::Status& status, const service::View* view) {
    if (view == nullptr) return answer->set_value(status);
    answer->set_value(TakeSnapshot(*view, start, retention_us));
  });
  if (future.wait_for(options_.snapshot_timeout) != std::future_status::ready) {
    return absl::DeadlineExceededError("the coordinator did not answer in time");
  }
  return future.get();
}

}  // namespace fedshard::metrics
