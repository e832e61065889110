// Copies of parts of a matrix in the order in which tiles of a product read them, widened to fp32.
#pragma once
#include "kernel.h"

namespace {

// A matrix as it lies in memory: element (i, j) is data[i * row + j * col].
template <class T>
struct Strided {
  const T* data;
  int64_t row, col;
};

// ---- four lanes at a time -----------------------------------------------------------------------------------

typedef float vquad __attribute__((vector_size(16)));

FS_INLINE vquad load_quad(const float* p) {
  vquad v;
  memcpy(&v, p, sizeof(v));
  return v;
}
FS_INLINE vquad load_quad(const bf16* p) {
  typedef uint32_t quad_bits __attribute__((vector_size(16)));
#if defined(__AVX2__)
  const quad_bits bits = (quad_bits)_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  const quad_bits bits = {p[0], p[1], p[2], p[3]};
#endif
  return (vquad)(bits << 16);
}

// quad(0) in the lowest four lanes, quad(1) in the next ones, ...
template <class Quad>
FS_INLINE vfloat join_quads(const Quad& quad) {
#if defined(__AVX512F__)
  __m512 v = _mm512_castps128_ps512((__m128)quad(0));
  v = _mm512_insertf32x4(v, (__m128)quad(1), 1);
  v = _mm512_insertf32x4(v, (__m128)quad(2), 2);
  return (vfloat)_mm512_insertf32x4(v, (__m128)quad(3), 3);
#elif defined(__AVX2__)
  return (vfloat)_mm256_insertf128_ps(_mm256_castps128_ps256((__m128)quad(0)), (__m128)quad(1), 1);
#else
  return quad(0);
#endif
}

// The four 4 x 4 matrices that stand side by side in four vectors, each transposed.
FS_INLINE void transpose_quads(vfloat v[4]) {
#if defined(__AVX512F__)
#define FS_LOW(a, b) _mm512_unpacklo_ps((__m512)a, (__m512)b)
#define FS_HIGH(a, b) _mm512_unpackhi_ps((__m512)a, (__m512)b)
#define FS_LOW_PAIR(a, b) (vfloat) _mm512_unpacklo_pd((__m512d)a, (__m512d)b)
#define FS_HIGH_PAIR(a, b) (vfloat) _mm512_unpackhi_pd((__m512d)a, (__m512d)b)
#elif defined(__AVX2__)
#define FS_LOW(a, b) _mm256_unpacklo_ps((__m256)a, (__m256)b)
#define FS_HIGH(a, b) _mm256_unpackhi_ps((__m256)a, (__m256)b)
#define FS_LOW_PAIR(a, b) (vfloat) _mm256_unpacklo_pd((__m256d)a, (__m256d)b)
#define FS_HIGH_PAIR(a, b) (vfloat) _mm256_unpackhi_pd((__m256d)a, (__m256d)b)
#else
#define FS_LOW(a, b) FS_SHUFFLE(a, b, 0, 4, 1, 5)
#define FS_HIGH(a, b) FS_SHUFFLE(a, b, 2, 6, 3, 7)
#define FS_LOW_PAIR(a, b) FS_SHUFFLE(a, b, 0, 1, 4, 5)
#define FS_HIGH_PAIR(a, b) FS_SHUFFLE(a, b, 2, 3, 6, 7)
#endif
  const auto ab_low = FS_LOW(v[0], v[1]), ab_high = FS_HIGH(v[0], v[1]);
  const auto cd_low = FS_LOW(v[2], v[3]), cd_high = FS_HIGH(v[2], v[3]);
  v[0] = FS_LOW_PAIR(ab_low, cd_low);
  v[1] = FS_HIGH_PAIR(ab_low, cd_low);
  v[2] = FS_LOW_PAIR(ab_high, cd_high);
  v[3] = FS_HIGH_PAIR(ab_high, cd_high);
#undef FS_LOW
#undef FS_HIGH
#undef FS_LOW_PAIR
#undef FS_HIGH_PAIR
}

// Elements k .. k + 3 of up to kWidth rows, `stride` apart, as four vectors: lane l of v[j] is element k + j of row l.
// Rows from `rows` on are those of the last one.
template <class T>
FS_INLINE void load_columns(const T* from, int64_t stride, int64_t rows, vfloat v[4]) {
  for (int j = 0; j < 4; ++j)
    v[j] = join_quads([=](int q) { return load_quad(from + min_of(4 * q + j, rows - 1) * stride); });
  transpose_quads(v);
}

FS_INLINE float as_float(float x) { return x; }
FS_INLINE float as_float(bf16 x) { return bf16_to_float(x); }

// ---- reading ahead --------------------------------------------------------------------------------------------

// The lines of a part of a matrix, to be asked for a few at a time while something else is computed.
class Ahead {
 public:
  // Nothing if the part is not dense in one direction.
  Ahead(const void* data, int64_t row, int64_t col, int64_t rows, int64_t cols, int64_t element) {
    if (!data || (row != 1 && col != 1)) return;
    const bool by_rows = col == 1;
    at_ = static_cast<const char*>(data);
    stride_ = (by_rows ? row : col) * element;
    left_ = by_rows ? rows : cols;
    lines_ = ((by_rows ? cols : rows) * element + 63) / 64;
  }
  int64_t lines() const { return left_ * lines_; }
  FS_INLINE void fetch(int64_t count) {
    for (int64_t i = 0; i < count && left_ > 0; ++i) {
      __builtin_prefetch(at_ + 64 * line_, 0, 2);
      if (++line_ < lines_) continue;
      line_ = 0;
      at_ += stride_;
      --left_;
    }
  }

 private:
  const char* at_ = nullptr;
  int64_t stride_ = 0, left_ = 0, lines_ = 0, line_ = 0;
};

// ---- panels -------------------------------------------------------------------------------------------------

// Rows cut into panels of nearly equal height: a last panel of one or two rows would leave the multiply-adds waiting.
struct Panels {
  int64_t rows, count, least, higher;  // `higher` panels of least + 1 rows, then those of `least`

  Panels(int64_t rows, int64_t most)
      : rows(rows), count((rows + most - 1) / most), least(rows / count), higher(rows % count) {}
  FS_INLINE int64_t begin(int64_t panel) const { return panel * least + min_of(panel, higher); }
  FS_INLINE int64_t height(int64_t panel) const { return least + (panel < higher); }
};

// Elements stand by row in memory: four columns at a time are turned. Whole vectors are stored, and what stands behind
// the last row is overwritten by the next columns, so the last ones are left to the caller. Returns the columns done.
template <class T>
FS_INLINE int64_t turn_rows(const T* from, int64_t stride, int64_t rows, int64_t depth, float* to) {
  int64_t k = 0;
  for (; k + 4 <= depth && (k + 3) * rows + kWidth <= depth * rows; k += 4) {
    for (int64_t r = 0; r < rows; r += kWidth) {
      vfloat v[4];
      load_columns(from + r * stride + k, stride, rows - r, v);
      for (int j = 0; j < 4; ++j) {
        float* target = to + (k + j) * rows + r;
        if (r == 0 || rows - r >= kWidth)
          store(target, v[j], All{});
        else
          store(target, v[j], First{rows - r});
      }
    }
  }
  return k;
}

FS_INLINE int64_t whole_vectors(int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; }

// Elements stand by column in memory, and a column crosses `count` panels of `height` rows: it is copied into all of
// them, in whole vectors as above. Precondition: whole vectors can be read from the last panel, too. Returns the columns done.
template <class T>
FS_INLINE int64_t copy_columns(const T* from, int64_t stride, int64_t count, int64_t height, int64_t depth, float* to) {
  constexpr int64_t kAhead = 8;  // columns are too far apart for the prefetcher of the CPU
  constexpr int64_t kLine = 64 / sizeof(T);
  int64_t k = 0;
  for (; k * height + whole_vectors(height) <= depth * height; ++k, from += stride) {
    if (k + kAhead < depth)
      for (int64_t i = 0; i < count * height; i += kLine) __builtin_prefetch(from + kAhead * stride + i);
    for (int64_t p = 0; p < count; ++p)
      for (int64_t r = 0; r < height; r += kWidth)
        store(to + (p * depth + k) * height + r, load(from + p * height + r, All{}), All{});
  }
  return k;
}

// Panels first .. last of the rows of m, `depth` columns: panel p stands at to + panels.begin(p) * depth as
// [depth][height(p)].
template <class T>
void pack_rows(const Strided<T>& m, const Panels& panels, int64_t first, int64_t last, int64_t depth, float* to) {
  constexpr int64_t kGroup = 16;
  for (int64_t p = first; p < last; ++p) {
    const int64_t begin = panels.begin(p), height = panels.height(p);
    const T* from = m.data + begin * m.row;
    float* target = to + begin * depth;
    int64_t count = 1, done = 0;
    if (m.row == 1) {
      const int64_t alike = (p < panels.higher ? min_of(last, panels.higher) : last) - p;
      const int64_t room = panels.rows - begin - whole_vectors(height);
      if (room >= 0) {
        count = min_of(min_of(kGroup, alike), room / height + 1);
        done = copy_columns(from, m.col, count, height, depth, target);
      }
    } else if (m.col == 1) {
      done = turn_rows(from, m.row, height, depth, target);
    }
    for (int64_t q = 0; q < count; ++q)
      for (int64_t k = done; k < depth; ++k)
        for (int64_t r = 0; r < height; ++r)
          target[(q * depth + k) * height + r] = as_float(from[(q * height + r) * m.row + k * m.col]);
    p += count - 1;
  }
}

// `cols` columns of m as panels of kCols columns, `depth` rows: panel q stands at to + q * stride as [depth][kCols].
// What stands beyond the last column is of no account.
template <int64_t kCols, class T>
void pack_cols(const Strided<T>& m, int64_t cols, int64_t depth, int64_t stride, float* to) {
  if (m.col == 1) {
    for (int64_t k = 0; k < depth; ++k)
      for_vectors(cols, [&](int64_t j, auto lanes) {
        store(to + j / kCols * stride + k * kCols + j % kCols, load(m.data + k * m.row + j, lanes), All{});
      });
    return;
  }
  for (int64_t j = 0; j < cols; j += kWidth) {
    const T* from = m.data + j * m.col;
    float* target = to + j / kCols * stride + j % kCols;
    const int64_t width = min_of(kWidth, cols - j);
    int64_t k = 0;
    if (m.row == 1)
      for (; k + 4 <= depth; k += 4) {
        vfloat v[4];
        load_columns(from + k, m.col, width, v);
        for (int l = 0; l < 4; ++l) store(target + (k + l) * kCols, v[l], All{});
      }
    for (; k < depth; ++k)
      for (int64_t l = 0; l < width; ++l) target[k * kCols + l] = as_float(from[k * m.row + l * m.col]);
  }
}

}  // namespace
