// A list of tensors as one long array, cut into chunks of equal work whatever the sizes of the tensors in it.
#pragma once
#include "kernel.h"

namespace {

// Elements of one chunk. A constant, so that sums by chunk have the same bits for any number of threads.
constexpr int64_t kChunk = 16384;
// Tensors start at multiples of this in the long array, so that every chunk starts at a whole vector of its tensor.
constexpr int64_t kTensorStep = 64;

FS_INLINE int64_t room_of(int64_t numel) { return (numel + kTensorStep - 1) / kTensorStep * kTensorStep; }

template <class Tensor>
FS_INLINE int64_t count_chunks(const Tensor* tensors, int64_t count) {
  int64_t length = 0;
  for (int64_t t = 0; t < count; ++t) length += room_of(tensors[t].numel);
  return (length + kChunk - 1) / kChunk;
}

// Walks upwards through the chunks of a list.
template <class Tensor>
struct ChunkWalk {
  const Tensor* tensors;
  int64_t count;
  int64_t tensor = 0, start = 0;  // where in the long array this tensor starts

  // body(t, begin, end) for the elements [begin, end) of each tensor t in the chunk.
  template <class Body>
  FS_INLINE void visit(int64_t chunk, const Body& body) {
    int64_t at = chunk * kChunk;
    const int64_t stop = at + kChunk;
    while (at < stop && tensor < count) {
      const int64_t numel = tensors[tensor].numel, room = room_of(numel);
      const int64_t begin = at - start, end = min_of(stop - start, numel);
      if (begin < end) body(tensor, begin, end);
      if (stop - start < room) return;
      at = max_of(at, start + room);
      start += room;
      ++tensor;
    }
  }
};

// body(t, begin, end, chunk) for every piece of every chunk, the chunks shared out over the threads.
template <class Tensor, class Body>
FS_INLINE void for_chunks(const Tensor* tensors, int64_t count, int64_t grain, const Body& body) {
  parallel_for(count_chunks(tensors, count), grain_rows(grain, kChunk), [&](int64_t first, int64_t last, int) {
    ChunkWalk<Tensor> walk{tensors, count};
    for (int64_t chunk = first; chunk < last; ++chunk)
      walk.visit(chunk, [&](int64_t t, int64_t begin, int64_t end) { body(t, begin, end, chunk); });
  });
}

}  // namespace
