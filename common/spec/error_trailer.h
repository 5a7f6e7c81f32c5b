// The binary trailer that carries a call's ErrorDetail: written by the coordinator, read by
// clients.
#pragma once

namespace fedshard {

inline constexpr char kErrorTrailer[] = "fedshard-error-bin";

}  // namespace fedshard
