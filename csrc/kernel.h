// What every kernel file includes: the name of its variant, element types, threads, vectors.
#pragma once
#include "fullstride.h"
#include "simd/vectors.h"
#include "threads.h"

#define FS_PASTE_(a, b, c, d) a##b##c##d
#define FS_PASTE(a, b, c, d) FS_PASTE_(a, b, c, d)
// FS_DEFINE(x)(args) { ... } defines this variant of kernel x.
#define FS_DEFINE(name) extern "C" FS_EXPORT void FS_PASTE(fs_, FS_ISA, _, name)

namespace {

constexpr FS_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr FS_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// body(T{}) with T the element type of `dtype`, F32 or BF16: one instantiation of the body for each.
template <class Body>
FS_INLINE void with_type(int32_t dtype, const Body& body) {
  if (dtype == FS_F32)
    body(float{});
  else
    body(bf16{});
}

// Row r of a matrix with `cols` columns of T; NULL stays NULL.
template <class T>
FS_INLINE const T* row(const void* matrix, int64_t r, int64_t cols) {
  return matrix ? static_cast<const T*>(matrix) + r * cols : nullptr;
}
template <class T>
FS_INLINE T* row(void* matrix, int64_t r, int64_t cols) {
  return matrix ? static_cast<T*>(matrix) + r * cols : nullptr;
}

struct Yes {
  static constexpr bool value = true;
};
struct No {
  static constexpr bool value = false;
};
// body(Yes{}) or body(No{}), so that a loop need not ask again.
template <class Body>
FS_INLINE void with_flag(bool flag, const Body& body) {
  if (flag)
    body(Yes{});
  else
    body(No{});
}

}  // namespace
