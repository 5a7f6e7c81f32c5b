// "Did you mean …?"
#pragma once

#include <string>
#include <vector>

namespace fedshard::cli {

// The candidate closest to `word` when it is close enough to be a typo of it, else empty.
std::string Closest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace fedshard::cli
