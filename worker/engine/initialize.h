// Initial weights as a function of (seed, parameter name, element) alone, so that every rank can
// fill just its part and every mesh starts from the same model. Stateless.
#pragma once

#include <cstdint>
#include <string>

namespace fedshard::engine {

// Writes elements [begin, begin + count) of the standard normal stream of (seed, name), times
// `deviation`.
void FillNormal(uint64_t seed, const std::string& name, double deviation, int64_t begin,
                int64_t count, float* out);

}  // namespace fedshard::engine
