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

const KernelTable* testing_table = nullptr;

const KernelTable* Found() {
  static const KernelTable* const table = Find();
  return table;
}

}  // namespace

const KernelTable* KernelsFor(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16) return nullptr;
  if (testing_table != nullptr) return testing_table;
  return tensor.is_cuda() ? Found() : nullptr;
}

void SetTableForTesting(const KernelTable* table) { testing_table = table; }

bool HaveKernels() { return Found() != nullptr; }

}  // namespace fedshard::kernels::cuda
