#include "worker/cuda_plugin/plugin.h"
#include "worker/kernels/cuda/table.h"

namespace fedshard::kernels::cuda {
namespace {

const KernelTable* Find() {
  try {
    void* get = cuda_plugin::FindSymbol(kKernelTableSymbol);
    return get == nullptr ? nullptr : reinterpret_cast<GetKernelTable>(get)();
  } catch (const cuda_plugin::PluginError&) {
    return nullptr;  // A program that links LibTorch's CUDA half itself needs no plugin.
  }
}

const KernelTable* Found() {
  static const KernelTable* const table = Find();
  return table;
}

}  // namespace

const KernelTable* KernelsFor(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return nullptr;
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 ? Found() : nullptr;
}

bool HaveKernels() { return Found() != nullptr; }

}  // namespace fedshard::kernels::cuda
