#include "worker/collective/tree_sum.h"

#include <ATen/ops/add.h>

#include <utility>

namespace fedshard::collective {
namespace {

struct Partial {
  at::Tensor sum;
  int depth;
  bool writable;
};

// Adds right to left. Addition of two floats commutes, so either may hold the result.
Partial Add(const Partial& left, const Partial& right) {
  at::Tensor target = left.writable ? left.sum : right.sum;
  at::add_out(target, left.sum, right.sum);
  return {target, left.depth + 1, true};
}

}  // namespace

void TreeSum(std::vector<at::Tensor> pieces, size_t keep, at::Tensor& out) {
  std::vector<Partial> stack;
  size_t taken = 0;
  const auto add_top_two = [&] {
    const Partial right = stack.back();
    stack.pop_back();
    if (taken == pieces.size() && stack.size() == 1) {
      at::add_out(out, stack.back().sum, right.sum);  // The last addition.
      stack.back() = {out, 0, true};
    } else {
      stack.back() = Add(stack.back(), right);
    }
  };
  while (taken < pieces.size()) {
    stack.push_back({std::move(pieces[taken]), 0, taken != keep});
    ++taken;
    while (stack.size() >= 2 && stack[stack.size() - 2].depth == stack.back().depth) add_top_two();
  }
  while (stack.size() >= 2) add_top_two();
  if (!stack.back().sum.is_same(out)) out.copy_(stack.back().sum);
}

}  // namespace fedshard::collective
