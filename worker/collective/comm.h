// Collectives of one process group: the only way the engine and the averager talk to other ranks.
//
// Threading: one thread issues all operations, in the same order on every rank. Abort() and
// bytes_sent() may be called from any thread. Operations are asynchronous: they start at once, and
// are complete when the ticket's Wait() returned; until then the tensors belong to the operation.
// Tensors are contiguous, 1-D, on the device of the Comm.
//
// Errors: operations and Wait() throw CommError when a peer is gone, the deadline passed or Abort()
// was called; the contents of the outputs are then undefined and the Comm is unusable.
//
// Sums are made in a fixed order: the pairwise tree over ranks, ((0+1)+(2+3))+..., on one rank,
// then distributed. So every rank gets the same bits, and a tree over shard ranks followed by one
// over replicas is the tree over all ranks when the sizes are powers of two.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fedshard::collective {

class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A started operation. Destroying a ticket that was not waited for waits first and swallows the
// error: an unwinding thread must not free tensors under a running transfer.
class Ticket {
 public:
  // What a backend has to finish; runs once, on the issuing thread.
  class Operation {
   public:
    virtual ~Operation() = default;
    virtual void Finish() = 0;
  };

  Ticket() = default;  // Complete already.
  explicit Ticket(std::unique_ptr<Operation> operation);
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(Ticket&&) noexcept;
  ~Ticket();

  void Wait();
  bool pending() const { return operation_ != nullptr; }

 private:
  std::unique_ptr<Operation> operation_;
};

class Comm {
 public:
  virtual ~Comm() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place: `full` has size() equal parts; this rank's part, at index rank(), is filled in, the
  // others are written.
  virtual Ticket AllGather(at::Tensor full) = 0;
  // `full` has size() equal parts; `shard` becomes the sum over ranks of part rank(). `full` is
  // unchanged.
  virtual Ticket ReduceScatter(at::Tensor full, at::Tensor shard) = 0;
  // Both have size() equal parts: part i of `in` goes to rank i, part i of `out` comes from rank i.
  virtual Ticket AllToAll(at::Tensor in, at::Tensor out) = 0;
  // In place sum over ranks; any length.
  virtual Ticket AllReduce(at::Tensor tensor) = 0;
  virtual Ticket Broadcast(at::Tensor tensor, int root) = 0;
  // Everyone's host values (equal counts), by rank. Blocking. Not counted as payload.
  virtual std::vector<std::vector<double>> AllGatherScalars(const std::vector<double>& mine) = 0;
  virtual std::vector<std::vector<uint64_t>> AllGatherWords(const std::vector<uint64_t>& mine) = 0;

  // Makes every pending and future operation throw CommError soon. Idempotent.
  virtual void Abort() = 0;
  // Tensor payload bytes that this rank has sent.
  virtual int64_t bytes_sent() const = 0;
};

}  // namespace fedshard::collective
