#include "worker/cuda_plugin/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace fedshard::cuda_plugin {
namespace {

void* Load() {
  // RTLD_GLOBAL: exceptions of the plugin are caught by type in the executable.
  void* library = dlopen(Path().c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw PluginError(dlerror());
  return library;
}

}  // namespace

std::string Path() {
  if (const char* path = getenv("FEDSHARD_CUDA_PLUGIN")) return path;
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  return (executable.parent_path() / "libfedshard_cuda.so").string();
}

void* FindSymbol(const char* symbol) {
  // Never unloaded: CUDA's libraries do not support it.
  static void* const library = Load();
  return dlsym(library, symbol);
}

}  // namespace fedshard::cuda_plugin
