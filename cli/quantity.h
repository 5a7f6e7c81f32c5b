// Numbers as people write them in job files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fedshard::cli {

// "200", "2M", "1.5K": decimal multiples (K, M, G, T) of tokens or steps. Nothing when it is not
// one, or no whole number.
std::optional<int64_t> ParseCount(const std::string& text);
// "4MiB", "512KiB", "1048576": bytes in powers of 1024.
std::optional<int64_t> ParseBytes(const std::string& text);
// The same, and "5GB": decimal multiples (KB, MB, GB, TB), as sizes of files are given.
std::optional<int64_t> ParseFileSize(const std::string& text);
// "5%" -> 0.05.
std::optional<double> ParsePercentage(const std::string& text);
// "409.6K", for tables: three significant digits.
std::string ShortCount(double value);
// "1.2 GiB", "512 B": for tables.
std::string ShortBytes(int64_t bytes);
// "1h 02m", "3m 07s", "4.2s".
std::string ShortSeconds(double seconds);

}  // namespace fedshard::cli
