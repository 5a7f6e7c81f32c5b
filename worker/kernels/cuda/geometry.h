// How the kernels are laid over a GPU: elements moved at once, lanes per row, blocks per launch.
// Plain C++.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "worker/kernels/cuda/arguments.h"
#include "worker/kernels/cuda/elements.h"

namespace fedshard::kernels::cuda {

template <int N>
struct Width {
  static constexpr int value = N;
};

// Whether rows of `size` elements from each of `pointers` on (null ones aside) can be moved in
// pieces of 16 bytes.
inline bool MovesWide(int64_t size, int element_bytes,
                      std::initializer_list<const void*> pointers) {
  return size * element_bytes % 16 == 0 &&
         std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
           return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
         });
}

// Calls body(T(), Width<N>()) for the element type, N elements being 16 bytes or one element.
template <typename Body>
void WithElement(Element element, int64_t size, std::initializer_list<const void*> pointers,
                 Body body) {
  if (element == Element::kFloat) {
    if (MovesWide(size, sizeof(float), pointers)) {
      body(float(), Width<4>());
    } else {
      body(float(), Width<1>());
    }
  } else if (MovesWide(size, sizeof(Bf16), pointers)) {
    body(Bf16(), Width<8>());
  } else {
    body(Bf16(), Width<1>());
  }
}

// Lanes for a row of `pieces` pieces: whole warps, no more than there is work for.
inline int LanesFor(int64_t pieces, int most) {
  return static_cast<int>(std::clamp<int64_t>((pieces + 31) / 32 * 32, 32, most));
}

// Blocks for `rows` rows, each of which takes every so many-th row.
inline int BlocksFor(int64_t rows) {
  return static_cast<int>(std::clamp<int64_t>(rows, 1, 1 << 20));
}

// Blocks, and rows of partial sums, for the gradient of RMSNorm's weight: the same on every GPU, so
// that the sums are.
inline int RmsNormPartials(int64_t rows) {
  return static_cast<int>(std::clamp<int64_t>(rows, 1, 512));
}

}  // namespace fedshard::kernels::cuda
