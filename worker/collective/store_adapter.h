// See key_value.h. Supports what ProcessGroupGloo and ProcessGroupNCCL call: set, get, wait, check;
// the rest throws.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/collective/key_value.h"

namespace fedshard::collective {

c10::intrusive_ptr<c10d::Store> MakeStore(std::shared_ptr<KeyValueClient> client,
                                          std::chrono::milliseconds timeout);

}  // namespace fedshard::collective
