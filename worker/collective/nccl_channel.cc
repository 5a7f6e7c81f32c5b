#include "worker/collective/nccl_channel.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <utility>

namespace fedshard::collective {
namespace {

constexpr std::chrono::milliseconds kWatchInterval(100);

// One for all communicators of the process, for its life: a thread that was joined while the
// process exits could wait for a communicator that hangs.
FailureWatch& Watch() {
  static auto* const watch = new FailureWatch(kWatchInterval, FailNccl);
  return *watch;
}

const char* Name(c10d::ErrorType error) {
  switch (error) {
    case c10d::ErrorType::SUCCESS:
      return "no error";
    case c10d::ErrorType::TIMEOUT:
      return "timed out";
    case c10d::ErrorType::COMM_ERROR:
      return "failed";
    case c10d::ErrorType::REMOTE_ERROR:
      return "failed at a peer";
  }
  return "failed";
}

}  // namespace

class NcclChannel::StreamOperation : public Ticket::Operation {
 public:
  StreamOperation(const NcclChannel& channel, Event done)
      : channel_(channel), done_(std::move(done)) {}
  void Finish() override {
    channel_.ThrowIfAborted();
    done_->block(at::cuda::getCurrentCUDAStream(channel_.gpu_));
  }

 private:
  const NcclChannel& channel_;
  const Event done_;
};

NcclChannel::NcclChannel(std::string name, Group group, int gpu, std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      group_(std::move(group)),
      gpu_(static_cast<c10::DeviceIndex>(gpu)),
      stream_(at::cuda::getStreamFromPool(/*isHighPriority=*/true, gpu_)),
      pending_(timeout),
      closing_(timeout),
      probe_(Watch().Add([this] { return Check(); })) {}

NcclChannel::~NcclChannel() {
  // A peer that is gone can keep NCCL from closing: the watch ends the process then.
  closing_.Started("closing", PendingOperations::Clock::now(), [] { return false; });
  try {
    if (std::uncaught_exceptions() > 0) Abort();
    if (!aborted_) group_->shutdown();
  } catch (const std::exception& error) {
    FailNccl(name_ + ": closing: " + error.what());
  }
  Watch().Remove(probe_);
}

Ticket NcclChannel::Issue(const char* what,
                          const std::function<void(c10d::ProcessGroupNCCL&)>& enqueue) {
  ThrowIfAborted();
  try {
    ready_.record(at::cuda::getCurrentCUDAStream(gpu_));
    ready_.block(stream_);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      enqueue(*group_);
    }
    Event done = TakeEvent();
    done->record(stream_);
    pending_.Started(what, PendingOperations::Clock::now(), [done] { return done->query(); });
    return Ticket(std::make_unique<StreamOperation>(*this, std::move(done)));
  } catch (const c10::Error& error) {
    ThrowIfAborted();
    FailNccl(name_ + ": " + what + ": " + error.what_without_backtrace());
  }
}

void NcclChannel::Abort() {
  if (!aborted_.exchange(true)) group_->abort();
}

void NcclChannel::ThrowIfAborted() const {
  if (aborted_) throw CommError("NCCL " + name_ + ": collective aborted");
}

NcclChannel::Event NcclChannel::TakeEvent() {
  for (const Event& event : events_) {
    if (event.use_count() == 1) return event;
  }
  events_.push_back(std::make_shared<at::cuda::CUDAEvent>());
  return events_.back();
}

std::optional<std::string> NcclChannel::Check() {
  const auto now = PendingOperations::Clock::now();
  if (const auto overdue = closing_.Overdue(now)) return name_ + ": " + *overdue;
  if (aborted_) return std::nullopt;
  c10::cuda::set_device(gpu_);  // Of the watch's thread; see fedshard_require_gpu.
  const c10d::ErrorType error = group_->getError();
  if (error != c10d::ErrorType::SUCCESS) return name_ + ": the communicator " + Name(error);
  if (const auto overdue = pending_.Overdue(now)) {
    return name_ + ": " + *overdue;
  }
  return std::nullopt;
}

}  // namespace fedshard::collective
