// Messages over Gloo's TCP transport (loopback or a network), on CPU tensors.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/collective/link.h"

namespace fedshard::collective {

// Connects to all peers through `store`; blocks until they are there, at most `timeout`, which is
// also the deadline of each message's Wait(). `address` is this rank's own. Throws CommError.
//
// A peer killed while a large message streams is not noticed by Gloo: the survivor would wait its
// whole timeout (seen in 23 of 24 trials at 64 MiB). Abort() from another thread ends every wait
// within milliseconds; the control plane's word that a rank is gone is what calls it.
std::unique_ptr<Link> ConnectGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  const std::string& address, std::chrono::milliseconds timeout);

}  // namespace fedshard::collective
