#include "worker/collective/comm.h"

#include <utility>

namespace fedshard::collective {

Ticket::Ticket(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}
Ticket::Ticket(Ticket&&) noexcept = default;

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Ticket finished(std::move(*this));
    operation_ = std::move(other.operation_);
  }
  return *this;
}

Ticket::~Ticket() {
  try {
    Wait();
  } catch (const std::exception&) {
    // Whoever drops a ticket is unwinding from the error that matters.
  }
}

void Ticket::Wait() {
  if (operation_ == nullptr) return;
  const std::unique_ptr<Operation> operation = std::move(operation_);
  operation->Finish();
}

}  // namespace fedshard::collective
