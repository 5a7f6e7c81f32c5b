#include "coordinator/rpc/check_spec.h"

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"

namespace fedshard::rpc {

void CheckSpec(const v1::JobSpec& spec, Violations& violations) {
  for (const v1::FieldViolation& violation : ValidateSpec(spec)) {
    violations.Add(absl::StrCat("spec.", violation.field()), violation.description());
  }
}

}  // namespace fedshard::rpc
