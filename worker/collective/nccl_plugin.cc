#include "worker/collective/nccl_plugin.h"

#include <string>

#include "worker/cuda_plugin/plugin.h"

namespace fedshard::collective {
namespace {

template <typename Function>
Function Find(const char* name) {
  try {
    void* symbol = cuda_plugin::FindSymbol(name);
    if (symbol == nullptr) {
      throw CommError("device cuda: " + cuda_plugin::Path() + " is not fedshard's CUDA plugin");
    }
    return reinterpret_cast<Function>(symbol);
  } catch (const cuda_plugin::PluginError& error) {
    throw CommError(std::string("device cuda: ") + error.what());
  }
}

}  // namespace

void RequireGpu(int gpu) { Find<RequireGpuFunction>(kRequireGpuSymbol)(gpu); }

NcclTiers ConnectNccl(const NcclGroup& group) {
  NcclTiers tiers;
  Find<ConnectNcclFunction>(kConnectNcclSymbol)(group, tiers);
  return tiers;
}

}  // namespace fedshard::collective
