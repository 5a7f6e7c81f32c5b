// Whether this machine computes in bf16 faster than in fp32. Stateless; any thread.
#pragma once

#include <string>

namespace fedshard::engine {

// Empty where bf16 has instructions of its own: on the CPU AVX512_BF16 or AMX (or bf16 of Arm), on
// a GPU compute capability 8.0. Else why it would be emulated slowly, in one sentence without a
// full stop. `gpu`: the index of the GPU when `cuda`.
std::string WhyNotBf16(bool cuda, int gpu);

}  // namespace fedshard::engine
