// One line of the journal: a command and its moment, in a versioned binary form of the core's own.
//
// Layout, little-endian: "FSR" and the version byte; command kind (u8); steady and wall time (i64
// each); the command's fields in fixed order; FNV-1a of all that came before (u64). Integers have 8
// bytes, booleans 1, doubles their IEEE bits, strings and lists a u32 count before their content.
// Kinds and field orders never change; a new form of a command gets a new kind.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/core/commands.h"
#include "coordinator/core/effects.h"

namespace fedshard::core {

struct DecodedRecord {
  Command command;
  Instant time;
};

Record EncodeRecord(const Command& command, Instant time);

// DATA_LOSS when the bytes are not exactly one intact record of a known version and kind.
absl::StatusOr<DecodedRecord> DecodeRecord(const std::string& bytes);

}  // namespace fedshard::core
