// What --version prints.
#pragma once

#include <string>

namespace fedshard {

// "0.1.0"
std::string ProjectVersion();
// Short git revision of the sources, with "-dirty" when they were changed; "unknown" outside a
// checkout.
std::string Revision();
// Several lines: "fedshard-worker 0.1.0 (1a2b3c4)", LibTorch, NCCL, Gloo and CUDA versions that it
// was built against.
std::string VersionText(const std::string& binary);

}  // namespace fedshard
