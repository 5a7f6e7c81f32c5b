#include "worker/checkpoint/writer.h"

#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "worker/checkpoint/checkpoint_job.h"

namespace fedshard::checkpoint {

struct CheckpointWriter::Impl {
  Impl(WriterOptions options, std::function<void(const WriteResult&)> done)
      : hold_up_us(options.hold_up_ms * 1000),
        job(std::move(options)),
        done(std::move(done)),
        thread([this] { Run(); }) {}

  void Run() {
    mu.Lock();
    while (true) {
      while (!pending && !stop) changed.Wait(mu);
      if (!pending) break;
      mu.Unlock();
      const WriteResult result = job.Write(*pending);  // `pending` is left alone until it is reset.
      if (job.IsLeader() || !result.error.empty()) done(result);
      mu.Lock();
      while (!skipped.empty()) {
        const std::vector<Manifest> steps = std::exchange(skipped, {});
        mu.Unlock();
        for (const Manifest& manifest : steps) done(job.Skip(manifest, result.step));
        mu.Lock();
      }
      pending.reset();
      changed.NotifyAll();
    }
    mu.Unlock();
  }

  // Waits for what is being written. False: it takes too long, and `next` is noted as skipped.
  bool AwaitFormer(const Manifest& next) {
    const MutexLock lock(mu);
    while (pending) {
      const int64_t left = pending->started_us + hold_up_us - SystemClock().Now().steady_us;
      if (left <= 0) {
        skipped.push_back(next);
        return false;
      }
      changed.WaitFor(mu, std::chrono::microseconds(left));
    }
    return true;
  }

  // False when there is no memory for the copy.
  bool Reserve(size_t bytes) {
    if (bytes <= copy_bytes) return true;
    copy.reset();
    copy_bytes = 0;
    copy.reset(new (std::nothrow) char[bytes]);
    if (copy != nullptr) copy_bytes = bytes;
    return copy != nullptr;
  }

  const int64_t hold_up_us;
  CheckpointJob job;  // Used by `thread` alone.
  const std::function<void(const WriteResult&)> done;
  // The copied state. Written by Start while nothing is pending, read by `thread` while it is. Raw
  // memory: training waits for the copy, and should not wait for zeros first.
  std::unique_ptr<char[]> copy;
  size_t copy_bytes = 0;

  Mutex mu;
  CondVar changed;
  bool stop GUARDED_BY(mu) = false;
  std::vector<Manifest> skipped GUARDED_BY(mu);  // While `pending` was written.
  std::optional<CheckpointRequest> pending;      // Set and reset under mu.
  std::thread thread;                            // Last: uses all of the above.
};

CheckpointWriter::CheckpointWriter(WriterOptions options,
                                   std::function<void(const WriteResult&)> done)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(done))) {}

CheckpointWriter::~CheckpointWriter() {
  {
    MutexLock lock(impl_->mu);
    impl_->stop = true;
    impl_->changed.NotifyAll();
  }
  impl_->thread.join();
}

void CheckpointWriter::Start(const Manifest& manifest, const std::vector<TensorToStore>& tensors) {
  if (!impl_->AwaitFormer(manifest)) return;
  CheckpointRequest request;
  request.manifest = manifest;
  request.started_us = SystemClock().Now().steady_us;
  size_t bytes = 0;
  for (const TensorToStore& tensor : tensors) {
    request.tensors.push_back(tensor.description);
    bytes += static_cast<size_t>(BytesIn(tensor.description));
  }
  if (impl_->Reserve(bytes)) {
    char* to = impl_->copy.get();
    for (const TensorToStore& tensor : tensors) {
      const auto size = static_cast<size_t>(BytesIn(tensor.description));
      if (size > 0) memcpy(to, tensor.data, size);
      to += size;
    }
    request.data = impl_->copy.get();
  } else {
    request.copy_failed = true;  // Training goes on; the writer reports it.
  }
  MutexLock lock(impl_->mu);
  impl_->pending = std::move(request);
  impl_->changed.NotifyAll();
}

void CheckpointWriter::Wait() {
  MutexLock lock(impl_->mu);
  while (impl_->pending) impl_->changed.Wait(impl_->mu);
}

}  // namespace fedshard::checkpoint
