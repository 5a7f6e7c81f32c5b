#include "worker/collective/nccl_plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace fedshard::collective {
namespace {

std::string PluginPath() {
  if (const char* path = getenv("FEDSHARD_CUDA_PLUGIN")) return path;
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  return (executable.parent_path() / "libfedshard_cuda.so").string();
}

struct Plugin {
  RequireGpuFunction require_gpu = nullptr;
  MakeNcclComm make_comm = nullptr;
};

template <typename Function>
Function Find(void* library, const std::string& path, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw CommError("device cuda: " + path + " is not fedshard's CUDA plugin");
  return reinterpret_cast<Function>(symbol);
}

Plugin LoadPlugin() {
  const std::string path = PluginPath();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw CommError(std::string("device cuda: ") + dlerror());
  return {Find<RequireGpuFunction>(library, path, kRequireGpuSymbol),
          Find<MakeNcclComm>(library, path, kMakeNcclCommSymbol)};
}

const Plugin& LoadedPlugin() {
  // Never unloaded: CUDA's libraries do not support it.
  static const Plugin plugin = LoadPlugin();
  return plugin;
}

}  // namespace

void RequireGpu(int gpu) { LoadedPlugin().require_gpu(gpu); }

std::unique_ptr<Comm> ConnectNccl(const NcclGroup& group) {
  return std::unique_ptr<Comm>(LoadedPlugin().make_comm(group));
}

}  // namespace fedshard::collective
