#include "coordinator/rpc/check_spec.h"

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/names.h"

namespace fedshard::rpc {

void CheckSpec(const v1::JobSpec& spec, Violations& violations) {
  if (!IsId(spec.id()))
    violations.Add("spec.id", "must be 1-63 lower-case letters, digits and hyphens");
}

}  // namespace fedshard::rpc
