// The CUDA half of the engine is libfedshard_cuda.so, which is loaded only by ranks on a GPU: a CPU
// rank would pay half a second and hundreds of megabytes for libraries it never calls. This room
// loads it; worker/collective and worker/kernels know what is in it. Stateless for the caller;
// thread-safe.
#pragma once

#include <stdexcept>
#include <string>

namespace fedshard::cuda_plugin {

// The plugin is not there, or a library that it needs is not.
class PluginError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The address of a plugin's `symbol`, null if it has none of that name. The first call loads the
// plugin, $FEDSHARD_CUDA_PLUGIN or else libfedshard_cuda.so beside the executable, for the life of
// the process. Throws PluginError.
void* FindSymbol(const char* symbol);

// What was or would be loaded.
std::string Path();

}  // namespace fedshard::cuda_plugin
