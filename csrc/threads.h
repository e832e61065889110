// How kernels share out work. The implementation (threads.cc) is compiled once, with baseline flags; only the
// inline wrappers live in the ISA files, with internal linkage.
#pragma once
#include <stdint.h>

extern "C" {
typedef void (*fs_task)(void* context, int64_t begin, int64_t end, int thread);
// Threads that a loop over `n` items will use, when `grain` items are worth one thread.
int fs_internal_num_threads(int64_t n, int64_t grain);
// Cuts [0, n) into that many contiguous parts, one a thread: the same cut for the same n, grain and threads.
void fs_internal_parallel(int64_t n, int64_t grain, fs_task task, void* context);
// Scratch memory of the calling thread, 64-byte aligned, valid until its next call; grows and is kept.
// Only for the thread that entered the kernel: tasks get their parts of it through the context.
void* fs_internal_scratch(int64_t bytes);
// The override set by fs_set_grain, or `measured`.
int64_t fs_internal_grain(int64_t measured);
// The override set by fs_set_welford_cols, or `measured`.
int64_t fs_internal_welford_cols(int64_t measured);
#if defined(FS_STD_THREADS)
// What omp_set_num_threads() is to OpenMP: for loops that the calling thread starts; 0: one a core. For tests.
__attribute__((visibility("default"))) void fs_internal_set_threads(int32_t num_threads);
#endif
}

namespace {

// body(begin, end, thread) over the parts of [0, n).
template <class Body>
inline void parallel_for(int64_t n, int64_t grain, const Body& body) {
  fs_internal_parallel(
      n, grain,
      [](void* context, int64_t begin, int64_t end, int thread) {
        (*static_cast<const Body*>(context))(begin, end, thread);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Rows of `cols` elements that are worth one thread, when `elements` elements are.
inline int64_t grain_rows(int64_t elements, int64_t cols) {
  const int64_t rows = fs_internal_grain(elements) / (cols > 0 ? cols : 1);
  return rows > 0 ? rows : 1;
}

}  // namespace
