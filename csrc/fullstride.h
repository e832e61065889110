/* The whole C ABI of Fullstride's kernel library: raw pointers and sizes, no torch, no C++.
 *
 * One kernel, several symbols. FS_KERNEL(name, args...) declares fs_<isa>_<name> for every ISA of this
 * architecture; which of them may be called on this CPU is what fs_isa_supported() answers. The Python
 * loader reads its argument types from this very file, so each declaration stays on the pattern
 * FS_KERNEL(name, type name, ...); with the types below and nothing else:
 *     void*, const void* and every other pointer, int64_t, uint64_t, int32_t, float, double.
 *
 * Preconditions of every kernel, checked by the caller (the wrappers in src/fullstride/ops):
 *   - sizes are >= 0; a size of 0 makes the call a no-op and its pointers may then be NULL;
 *   - tensors are dense and row-major unless a stride is taken; pointers are aligned to their element;
 *   - outputs do not overlap inputs, except where "may alias" is said: then only exactly, same pointer;
 *   - a dtype argument is one of fs_dtype, and only those listed at the kernel;
 *   - pointers marked "or NULL" switch a part off. All others are not NULL.
 * Arithmetic is fp32 inside, whatever the dtypes. NaN and infinity propagate as in the formula.
 * Kernels never throw, never allocate for the caller, and keep no state but a scratch buffer per thread.
 * Same inputs and same thread count: bitwise the same outputs.
 */
#ifndef FULLSTRIDE_H
#define FULLSTRIDE_H
#include <stdint.h>

#if defined(_WIN32)
#define FS_EXPORT __declspec(dllexport)
#else
#define FS_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the library ------------------------------------------------------------------------------ */

/* Variants in rising order of preference. Index i of fs_isa_name(i) is the index of every table. */
#if defined(__x86_64__) || defined(_M_X64)
#define FS_NUM_ISAS 4
#define FS_KERNEL(name, ...)                                                                        \
  FS_EXPORT void fs_portable_##name(__VA_ARGS__);                                                   \
  FS_EXPORT void fs_avx2_##name(__VA_ARGS__);                                                       \
  FS_EXPORT void fs_avx512_##name(__VA_ARGS__);                                                     \
  FS_EXPORT void fs_avx512_bf16_##name(__VA_ARGS__)
#define FS_VARIANTS(name) {fs_portable_##name, fs_avx2_##name, fs_avx512_##name, fs_avx512_bf16_##name}
#elif defined(__aarch64__)
#define FS_NUM_ISAS 3
#define FS_KERNEL(name, ...)                                                                        \
  FS_EXPORT void fs_portable_##name(__VA_ARGS__);                                                   \
  FS_EXPORT void fs_neon_##name(__VA_ARGS__);                                                       \
  FS_EXPORT void fs_neon_bf16_##name(__VA_ARGS__)
#define FS_VARIANTS(name) {fs_portable_##name, fs_neon_##name, fs_neon_bf16_##name}
#else
#define FS_NUM_ISAS 1
#define FS_KERNEL(name, ...) FS_EXPORT void fs_portable_##name(__VA_ARGS__)
#define FS_VARIANTS(name) {fs_portable_##name}
#endif

enum fs_dtype { FS_F32 = 0, FS_BF16 = 1, FS_F16 = 2 };

FS_EXPORT const char* fs_version(void);
FS_EXPORT const char* fs_isa_name(int32_t isa);   /* NULL outside [0, FS_NUM_ISAS) */
FS_EXPORT int32_t fs_isa_supported(int32_t isa);  /* 1 if this CPU and this OS can run it */
FS_EXPORT int32_t fs_max_threads(void);           /* threads a kernel called from here may use */

/* 1 (the default): denormals are flushed while a kernel runs, in each of its threads, and every thread's
 * own setting is put back afterwards. 0: kernels leave the setting alone. */
FS_EXPORT void fs_set_flush_denormals(int32_t on);
/* Flush denormals in this thread and every thread of the OpenMP pool from now on, for torch's kernels too. */
FS_EXPORT void fs_flush_denormals_everywhere(int32_t on);
/* Elements below which a kernel stays on one thread; 0 restores the measured defaults. For benchmarks/. */
FS_EXPORT void fs_set_grain(int64_t elements);

/* ---- probes of the machine ---------------------------------------------------------------------- */

/* out[0] = sum over a[i], read only; the fastest read this variant can make of numel floats. */
FS_KERNEL(stream_read, const float* a, int64_t numel, float* out);
/* a[i] = b[i] + s * c[i], written around the cache. */
FS_KERNEL(stream_triad, float* a, const float* b, const float* c, float s, int64_t numel);
/* a[i] = s * a[i], read and written in place. */
FS_KERNEL(stream_scale, float* a, float s, int64_t numel);

/* ---- layer_norm.cc ------------------------------------------------------------------------------ */

/* s = x + residual;  y = (s - mean(s)) * rstd(s) * weight + bias, row by row.
 * x, residual (or NULL), y, sum (or NULL; required with residual; may alias x or residual): dtype F32 or BF16,
 * [rows, cols]. weight, bias (each or NULL): weight_dtype F32 or BF16, [cols]. mean, rstd: [rows] floats.
 * The statistics are those of the rounded sum, the values backward will see. */
FS_KERNEL(layer_norm_forward, const void* x, const void* residual, const void* weight, const void* bias, void* y,
          void* sum, float* mean, float* rstd, int64_t rows, int64_t cols, float eps, int32_t dtype,
          int32_t weight_dtype);
/* dx = gradient of s from dy, plus dsum (the gradient arriving at the sum output, or NULL).
 * x is s of the forward pass. dx may alias dy or dsum. dweight, dbias: [cols] floats, overwritten; or both NULL. */
FS_KERNEL(layer_norm_backward, const void* dy, const void* dsum, const void* x, const void* weight,
          const float* mean, const float* rstd, void* dx, float* dweight, float* dbias, int64_t rows, int64_t cols,
          int32_t dtype, int32_t weight_dtype);

/* ---- rms_norm.cc -------------------------------------------------------------------------------- */

/* s = x + residual;  y = s * rstd(s) * weight with rstd = 1 / sqrt(mean(s^2) + eps). As layer_norm_forward. */
FS_KERNEL(rms_norm_forward, const void* x, const void* residual, const void* weight, void* y, void* sum, float* rstd,
          int64_t rows, int64_t cols, float eps, int32_t dtype, int32_t weight_dtype);
FS_KERNEL(rms_norm_backward, const void* dy, const void* dsum, const void* x, const void* weight, const float* rstd,
          void* dx, float* dweight, int64_t rows, int64_t cols, int32_t dtype, int32_t weight_dtype);

#ifdef __cplusplus
}
#endif
#endif
