// Point-to-point messages between the ranks of one group: what a backend has to provide for
// LinkComm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace fedshard::collective {

// A message under way. Wait() throws CommError; the tensor belongs to the transfer until then.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void Wait() = 0;
};

// Messages are matched by (sender, receiver, tag). One thread sends and receives; Abort() comes
// from any thread and makes every transfer, pending and future, throw CommError soon. Errors:
// CommError.
class Link {
 public:
  virtual ~Link() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Transfer> Send(at::Tensor tensor, int to, uint32_t tag) = 0;
  virtual std::unique_ptr<Transfer> Receive(at::Tensor tensor, int from, uint32_t tag) = 0;
  virtual void Abort() = 0;
};

}  // namespace fedshard::collective
