#include "worker/engine/precision_support.h"

#include <dlfcn.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fedshard::engine {
namespace {

#if defined(__x86_64__)
bool CpuHasBf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) != 0) return true;  // AMX_BF16.
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) != 0;             // AVX512_BF16.
}
constexpr char kCpuNeeds[] = "has neither AVX512_BF16 nor AMX_BF16";
#elif defined(__aarch64__) && defined(__linux__)
bool CpuHasBf16() {
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16.
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
}
constexpr char kCpuNeeds[] = "has no BF16 extension";
#else
bool CpuHasBf16() { return false; }
constexpr char kCpuNeeds[] = "is of a kind for which bf16 instructions are not known";
#endif

// Asked from the driver itself: CPU builds have no CUDA runtime, and ranks should learn this before
// they load one.
std::string WhyGpuHasNot(int gpu) {
  // Never closed: an initialised driver must stay.
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return "there is no CUDA driver on this node";
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto device_get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*.
  int device = 0, major = 0, minor = 0;
  const bool answered = init != nullptr && device_get != nullptr && attribute != nullptr &&
                        init(0) == 0 && device_get(&device, gpu) == 0 &&
                        attribute(&major, kMajor, device) == 0 &&
                        attribute(&minor, kMinor, device) == 0;
  const std::string name = "GPU " + std::to_string(gpu);
  if (!answered) return "the CUDA driver knows no " + name;
  if (major >= 8) return "";
  return name + " has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
         ", and bf16 needs 8.0";
}

}  // namespace

std::string WhyNotBf16(bool cuda, int gpu) {
  if (cuda) return WhyGpuHasNot(gpu);
  return CpuHasBf16() ? "" : std::string("this CPU ") + kCpuNeeds;
}

}  // namespace fedshard::engine
