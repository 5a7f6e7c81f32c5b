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

MakeNcclComm LoadPlugin() {
  const std::string path = PluginPath();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw CommError(std::string("device cuda: ") + dlerror());
  void* symbol = dlsym(library, kMakeNcclCommSymbol);
  if (symbol == nullptr) throw CommError("device cuda: " + path + " is not fedshard's CUDA plugin");
  return reinterpret_cast<MakeNcclComm>(symbol);
}

}  // namespace

std::unique_ptr<Comm> ConnectNccl(const NcclGroup& group) {
  static const MakeNcclComm make =
      LoadPlugin();  // Never unloaded: CUDA's libraries do not support it.
  return std::unique_ptr<Comm>(make(group));
}

}  // namespace fedshard::collective
