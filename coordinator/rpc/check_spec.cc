#include "coordinator/rpc/check_spec.h"

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/names.h"

namespace fedshard::rpc {

void CheckSpec(const v1::JobSpec& spec, Violations& violations) {
  CheckId(spec.id(), "spec.id", violations);
}

}  // namespace fedshard::rpc
