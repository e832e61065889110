/* The whole C ABI of Fullstride's kernel library: raw pointers and sizes, no torch, no C++.
 *
 * One kernel, several symbols. FS_KERNEL(name, args...) declares fs_<isa>_<name> for every ISA of this
 * architecture; which of them may be called on this CPU is what fs_isa_supported() answers. The Python
 * loader reads its argument types from this very file, so each declaration stays on the pattern
 * FS_KERNEL(name, type name, ...); with the types below and nothing else:
 *     void*, const void* and every other pointer, int64_t, uint64_t, int32_t, float, double.
 *
 * Preconditions of every kernel, checked by the caller (the wrappers in src/fullstride/ops):
 *   - sizes are >= 0; tensors with no element are neither read nor written and may be NULL. Sums over no rows are still
 *     written: dweight, dbias, a norm, a loss are then 0, or what the kernel says;
 *   - tensors are dense and row-major unless a stride is taken; pointers are aligned to their element;
 *   - outputs do not overlap inputs, except where "may alias" is said: then only exactly, same pointer;
 *   - a dtype argument is one of fs_dtype, and only those listed at the kernel;
 *   - pointers marked "or NULL" switch a part off. All others are not NULL.
 * Arithmetic is fp32 inside, whatever the dtypes; products of bf16 are by bf16 instructions where the variant has
 * them. NaN and infinity propagate as in the formula.
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
#define FS_NUM_ISAS 5
#define FS_KERNEL(name, ...)                                                                        \
  FS_EXPORT void fs_portable_##name(__VA_ARGS__);                                                   \
  FS_EXPORT void fs_avx2_##name(__VA_ARGS__);                                                       \
  FS_EXPORT void fs_avx512_##name(__VA_ARGS__);                                                     \
  FS_EXPORT void fs_avx512_bf16_##name(__VA_ARGS__);                                                \
  FS_EXPORT void fs_amx_##name(__VA_ARGS__)
#elif defined(__aarch64__)
#define FS_NUM_ISAS 3
#define FS_KERNEL(name, ...)                                                                        \
  FS_EXPORT void fs_portable_##name(__VA_ARGS__);                                                   \
  FS_EXPORT void fs_neon_##name(__VA_ARGS__);                                                       \
  FS_EXPORT void fs_neon_bf16_##name(__VA_ARGS__)
#else
#define FS_NUM_ISAS 1
#define FS_KERNEL(name, ...) FS_EXPORT void fs_portable_##name(__VA_ARGS__)
#endif

enum fs_dtype { FS_F32 = 0, FS_BF16 = 1, FS_F16 = 2 };

FS_EXPORT const char* fs_version(void);
FS_EXPORT const char* fs_isa_name(int32_t isa);   /* NULL outside [0, FS_NUM_ISAS) */
/* 1 if this CPU and this OS can run it, and for amx if the compiler could build it. For amx this asks Linux for
 * permission to use the matrix unit, once; it is refused where a thread has a signal stack too small for its
 * registers. */
FS_EXPORT int32_t fs_isa_supported(int32_t isa);
/* The variant whose kernels serve where this one has none of its own, -1 if it has all of them. */
FS_EXPORT int32_t fs_isa_base(int32_t isa);
FS_EXPORT int32_t fs_max_threads(void);           /* threads a kernel called from here may use; 1 after fork() */

/* 1 (the default): denormals are flushed while a kernel runs, in each of its threads, and every thread's
 * own setting is put back afterwards. 0: kernels leave the setting alone. */
FS_EXPORT void fs_set_flush_denormals(int32_t on);
/* Flush denormals in this thread and every thread of the OpenMP pool from now on, for torch's kernels too. */
FS_EXPORT void fs_flush_denormals_everywhere(int32_t on);
/* Elements below which a kernel stays on one thread; 0 restores the measured defaults. For benchmarks/. */
FS_EXPORT void fs_set_grain(int64_t elements);
/* Columns below which LayerNorm takes Welford's single pass; -1 restores the measured default. For benchmarks/. */
FS_EXPORT void fs_set_welford_cols(int64_t cols);

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

/* ---- grads.cc ----------------------------------------------------------------------------------- */

/* One tensor of a list; its elements in any order, as long as they are dense. */
struct fs_tensor {
  void* data; /* or NULL when numel is 0 */
  int64_t numel;
  int64_t dtype; /* F32 or BF16; a list may mix them */
};

/* out[0] = the L2 norm over all elements of all tensors, summed in double (bf16 in fp32 within 16 terms a lane): no
 * overflow, and finite exactly if every element is. 0 for an empty list. Bitwise the same for any number of threads.
 * Denormals count as zero. */
FS_KERNEL(grad_norm, const struct fs_tensor* tensors, int64_t count, double* out);
/* targets[i] += scale * sources[i]. Targets are F32; sources F32 or BF16, each of the size of its target. */
FS_KERNEL(grad_accumulate, const struct fs_tensor* targets, const struct fs_tensor* sources, int64_t count,
          float scale);
/* tensors[i] *= factor, in place. */
FS_KERNEL(grad_scale, const struct fs_tensor* tensors, int64_t count, float factor);

/* ---- rope.cc ------------------------------------------------------------------------------------ */

/* Each pair (a, b) of the first rotary_dim elements of x[batch, seq, head, :] is turned by the angles of its position:
 *     a cos - b sin,  b cos + a sin;   with backward the angle is negated, which is the gradient: dx from dy.
 * Pair i is (2i, 2i + 1) when interleaved, else (i, i + rotary_dim / 2). Elements beyond rotary_dim are copied.
 * x, y: dtype F32 or BF16, strides in elements, the last dimension dense; y may alias x if the strides are the same,
 * and no two elements of y share memory. cos, sin: [positions of the table, rotary_dim / 2]; rotary_dim is even and
 * <= head_dim. The position of s is positions[batch, s] ([batch, seq], or NULL: offset + s), in [0, table). */
FS_KERNEL(rope, const void* x, void* y, const float* cos, const float* sin, const int64_t* positions, int64_t batch,
          int64_t seq, int64_t heads, int64_t head_dim, int64_t rotary_dim, int64_t x_batch_stride,
          int64_t x_seq_stride, int64_t x_head_stride, int64_t y_batch_stride, int64_t y_seq_stride,
          int64_t y_head_stride, int64_t offset, int32_t interleaved, int32_t backward, int32_t dtype);

/* ---- embedding.cc ------------------------------------------------------------------------------- */

/* out[i] = weight[indices[i]]. weight: dtype F32 or BF16, [vocab, dim]; out: the same dtype, [numel, dim].
 * indices: [numel] int64_t, or int32_t if narrow. An index outside [0, vocab) gives a row of zeros, and the place of
 * the first such index is written to bad[0]; -1 if there is none. */
FS_KERNEL(embedding_forward, const void* indices, const void* weight, void* out, int64_t* bad, int64_t numel,
          int64_t vocab, int64_t dim, int32_t narrow, int32_t dtype);
/* dweight[v] = sum over the i with indices[i] == v of dy[i], in fp32, in the order of i, rounded once; a row without
 * such an i is zero, and so is row `padding` (-1: none). With accumulate the sum starts from dweight[v] instead, and
 * other rows are left alone. dy: dtype F32 or BF16, [numel, dim]. dweight: dweight_dtype F32 or BF16, [vocab, dim].
 * Indices outside [0, vocab) are passed over. The same bits for any number of threads. */
FS_KERNEL(embedding_backward, const void* indices, const void* dy, void* dweight, int64_t numel, int64_t vocab,
          int64_t dim, int64_t padding, int32_t accumulate, int32_t narrow, int32_t dtype, int32_t dweight_dtype);

/* ---- cross_entropy.cc --------------------------------------------------------------------------- */

/* losses[r] = -sum over c of q[c] * log_softmax(logits[r])[c], with q the target distribution: label_smoothing /
 * classes everywhere and 1 - label_smoothing more at target[r]. dlogits = (softmax - q) / (mean ? valid[0] : 1).
 * logits, dlogits (or NULL: loss only; may alias logits): dtype F32 or BF16, [rows, classes], classes >= 1.
 * losses: [rows] floats. total: 1 double, the sum of the losses, divided by valid[0] if mean (0 / 0 gives NaN).
 * total and valid are written even if rows is 0.
 * valid: valid[0] = number of targets that are not ignore_index; valid[1] = the first row whose target is neither
 * that nor in [0, classes), or -1: if there is one, nothing else is written.
 * A row of target ignore_index has loss 0 and gradient 0, and its logits are not read. */
FS_KERNEL(cross_entropy, const void* logits, const int64_t* target, void* dlogits, float* losses, double* total,
          int64_t* valid, int64_t rows, int64_t classes, int64_t ignore_index, float label_smoothing, int32_t mean,
          int32_t dtype);
/* out = dlogits * factor, factor[r * factor_stride] in row r (stride 0: the same for all). out may alias dlogits. */
FS_KERNEL(cross_entropy_scale, const void* dlogits, const float* factor, int64_t factor_stride, void* out,
          int64_t rows, int64_t classes, int32_t dtype);

/* ---- adam.cc, sgd.cc, lamb.cc: one call a step for a whole list of tensors ------------------------ */

/* How a weight is kept.
 *   F32:   weight is fp32.
 *   SPLIT: weight is bf16 and weight_lo int16. With `bits` the fp32 pattern: weight = (bits + 0x8000) >> 16, which is
 *          rounding to nearest, and weight_lo = bits - (weight << 16); (weight << 16) + weight_lo is bits again.
 *          A NaN is made the quiet one with lower half 0 first, so that the bf16 half shows it.
 *   BF16:  weight is bf16, rounded stochastically. */
enum fs_weight_format { FS_WEIGHT_F32 = 0, FS_WEIGHT_SPLIT = 1, FS_WEIGHT_BF16 = 2 };

/* How m, v and v_max are kept.
 *   F32:  fp32.    BF16: bf16, rounded stochastically.
 *   8BIT: a byte an element and a scale S for each block of 256. S is a power of two: a value that does not change
 *         is then encoded to the same byte again although the largest of its block moved a little, and stochastic
 *         rounding adds noise only for what did change. Both codes are floats shifted by 2^-15, so that they are
 *         evenly spaced around zero and logarithmic beyond, and need no table:
 *           m:         sign and 7 bits c, |m|     = S * (float with pattern 0x38000000 + (c << 20)) - S * 2^-15
 *           v, v_max:  8 bits c,          sqrt(v) = S * (float with pattern 0x38000000 + (c << 19)) - S * 2^-15
 *         S is the smallest power of two with 1.067 * absmax / S < 2, at least 2^-126. The smallest code that
 *         is written for sqrt(v) is 1, because m / (0 + eps) would explode. A block with a value that is not finite or above 2^124 gets S = NaN, bytes 0, and decodes to NaN. */
enum fs_state_format { FS_STATE_F32 = 0, FS_STATE_BF16 = 1, FS_STATE_8BIT = 2 };
enum { FS_STATE_BLOCK = 256 };

/* One tensor of the list: formats, step and group are its own. 120 bytes without padding; ops/_optimizer.py mirrors it.
 * Random bits for the elements 2 k and 2 k + 1 are those of simd/random.h for (seed, step, stream, k): the lower 16 (bf16)
 * or 20 (8 bits) for m of the even and the upper ones for m of the odd element; for v and v_max the upper 16 or 19 of
 * the even and the lower ones of the odd element; for bf16 weights as for m, from stream + 2^63. */
typedef struct fs_param {
  void* weight;        /* fp32 or bf16 by weight_format, numel */
  void* weight_lo;     /* int16, SPLIT only, else NULL */
  const void* grad;    /* grad_dtype, numel */
  void* m;             /* by state_format, numel; NULL where the optimizer has none (SGD without momentum) */
  void* v;             /* by state_format, numel; NULL where the optimizer has none (SGD) */
  void* v_max;         /* by state_format, numel; AMSGrad only, else NULL */
  float* m_scale;      /* ceil(numel / 256) scales of m, 8BIT only, else NULL; likewise the next two */
  float* v_scale;
  float* v_max_scale;
  float* slow;         /* Lookahead's slow weights, numel; or NULL */
  int64_t numel;
  int64_t step;        /* of this tensor, from 1: bias correction and random bits come from it */
  uint64_t stream;     /* which random stream, < 2^63, different for each tensor: its position, say */
  int32_t group;       /* index into the groups */
  int32_t weight_format;
  int32_t grad_dtype;  /* FS_F32 or FS_BF16 */
  int32_t state_format;
} fs_param;

/* Every step kernel: params[num_params], groups indexed by params[i].group. The gradient is taken times grad_scale
 * (clipping, 1 / loss scale, 1 / accumulation). lookahead_alpha > 0: after the step, tensors with slow weights do
 * slow += lookahead_alpha * (weight - slow) and weight = slow. skip != 0: nothing is done at all.
 * The result does not depend on the number of threads, nor on how a list is divided among calls. */

typedef struct fs_adam_group {
  double lr, beta1, beta2, eps, weight_decay;
  int32_t decoupled; /* 1: weight *= 1 - lr * weight_decay (AdamW); 0: gradient += weight_decay * weight (Adam) */
  int32_t amsgrad;   /* 1: every tensor of the group has v_max */
  int32_t maximize;
  int32_t reserved;  /* 0 */
} fs_adam_group;

/* m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;  v_max = max(v_max, v)
 * weight -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps), with v_max for v under AMSGrad. */
FS_KERNEL(adam_step, fs_param* params, int64_t num_params, const fs_adam_group* groups, float grad_scale,
          float lookahead_alpha, uint64_t seed, int32_t skip);

typedef struct fs_sgd_group {
  double lr, momentum, dampening, weight_decay;
  int32_t nesterov;
  int32_t maximize;
} fs_sgd_group;

/* g += weight_decay * weight;  m = momentum m + (1 - dampening) g, at step 1: m = g;  with Nesterov g += momentum m,
 * else g = m;  weight -= lr g. Tensors of a group with momentum 0 need no m and do not use one. v is never used. */
FS_KERNEL(sgd_step, fs_param* params, int64_t num_params, const fs_sgd_group* groups, float grad_scale,
          float lookahead_alpha, uint64_t seed, int32_t skip);

typedef struct fs_lamb_group {
  double lr, beta1, beta2, eps, weight_decay;
  int32_t maximize;
  int32_t reserved; /* 0 */
} fs_lamb_group;

/* m and v as in adam_step, then from the states as they are stored
 *   u = m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay * weight
 *   weight -= lr * ratio * u,  ratio = |weight| / |u| over the whole tensor, 1 where one of the norms is 0.
 * The norms are summed in double. */
FS_KERNEL(lamb_step, fs_param* params, int64_t num_params, const fs_lamb_group* groups, float grad_scale,
          float lookahead_alpha, uint64_t seed, int32_t skip);

/* ---- vector_math.cc ------------------------------------------------------------------------------ */

enum fs_function {
  FS_EXP = 0, FS_LOG = 1, FS_SQRT = 2, FS_RSQRT = 3, FS_TANH = 4, FS_SIGMOID = 5, FS_SIN = 6, FS_COS = 7, FS_ERF = 8
};

/* y[i] = f(x[i]) for `function` of fs_function, to the bound in ulp that ops/vector_math.py states. y may alias x.
 * x, y: dtype F32 or BF16. Denormals, in and out, are zeros of their sign while they are flushed (the default). */
FS_KERNEL(vector_function_forward, const void* x, void* y, int64_t n, int32_t function, int32_t dtype);
/* dx[i] = dy[i] * f'. saved: the result y of forward for exp, sqrt, rsqrt, tanh and sigmoid, its input x for log,
 * sin, cos and erf. dx may alias dy. All of dtype F32 or BF16. */
FS_KERNEL(vector_function_backward, const void* dy, const void* saved, void* dx, int64_t n, int32_t function,
          int32_t dtype);
/* y[i] = a[i] + b[i];  y[i] = a[i] * b[i];  y[i] = factor * x[i]. All of dtype F32 or BF16, rounded once. y may alias
 * any of the others. Denormals as above. */
FS_KERNEL(vector_add, const void* a, const void* b, void* y, int64_t n, int32_t dtype);
FS_KERNEL(vector_mul, const void* a, const void* b, void* y, int64_t n, int32_t dtype);
FS_KERNEL(vector_scale, const void* x, float factor, void* y, int64_t n, int32_t dtype);

/* ---- convert.cc --------------------------------------------------------------------------------- */

/* y[i] = x[i] in another format, rounded to nearest, ties to even, denormals kept, overflow to infinity, NaN kept
 * quiet with the upper bits of its payload. from, to: F32, BF16 or F16, not the same. The same bits in every variant. */
FS_KERNEL(convert, const void* x, void* y, int64_t n, int32_t from, int32_t to);
/* bf16, rounded up in magnitude with the probability of the discarded fraction, from the 16 lower random bits of
 * (seed, step, stream, i). Infinity and NaN are kept, and no finite number becomes infinite.
 * y: n bf16. The same bits in every variant and for any number of threads. */
FS_KERNEL(convert_stochastic, const float* x, void* y, int64_t n, uint64_t seed, uint64_t step, uint64_t stream);
/* hi = (bits + 0x8000) >> 16, a bf16 rounded to nearest, and lo = bits - (hi << 16), an int16. A NaN becomes the
 * quiet NaN of its sign with lo = 0. */
FS_KERNEL(split, const float* x, void* hi, int16_t* lo, int64_t n);
/* y = (hi << 16) + lo: every bit of what was split. A negative lo beside a zero hi counts as 0. */
FS_KERNEL(merge, const void* hi, const int16_t* lo, float* y, int64_t n);

/* ---- bias_act.cc --------------------------------------------------------------------------------- */

enum fs_activation { FS_NONE = 0, FS_RELU = 1, FS_GELU = 2 /* exact */, FS_GELU_TANH = 3, FS_SILU = 4 };

/* y = activation(x + bias). x, y (may alias x): dtype F32 or BF16, [rows, cols]. bias (or NULL): bias_dtype F32 or
 * BF16, [cols]. activation: one of fs_activation. */
FS_KERNEL(bias_act_forward, const void* x, const void* bias, void* y, int64_t rows, int64_t cols, int32_t activation,
          int32_t dtype, int32_t bias_dtype);
/* dx = dy * activation'(x + bias); dbias (or NULL): [cols] floats, overwritten with the column sums of dx before they
 * are rounded. saved: y for RELU, x for the others, not read for NONE. bias: as in forward, not read for RELU and NONE.
 * dx may alias dy. For NONE dx is dy: the argument is not read and nothing is written to it. */
FS_KERNEL(bias_act_backward, const void* dy, const void* saved, const void* bias, void* dx, float* dbias, int64_t rows,
          int64_t cols, int32_t activation, int32_t dtype, int32_t bias_dtype);

/* ---- glu.cc -------------------------------------------------------------------------------------- */

/* y = activation(gate) * up, row by row. gate, up: dtype F32 or BF16, [rows, cols] with gate_stride and up_stride
 * elements from one row to the next, so that they may be the halves of one tensor. y: [rows, cols], dense.
 * activation: SILU, GELU or GELU_TANH. */
FS_KERNEL(glu_forward, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride, void* y, int64_t rows,
          int64_t cols, int32_t activation, int32_t dtype);
/* dgate = dy * up * activation'(gate), dup = dy * activation(gate). dy: [rows, cols], dense; dgate, dup: with row
 * strides of their own. dgate may alias gate, dup may alias up or dy. */
FS_KERNEL(glu_backward, const void* dy, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride,
          void* dgate, int64_t dgate_stride, void* dup, int64_t dup_stride, int64_t rows, int64_t cols,
          int32_t activation, int32_t dtype);

/* ---- dropout.cc ---------------------------------------------------------------------------------- */

/* y[i] = x[i] * scale, or x[i] * 0 where element i is dropped: where the 32 random bits of (seed, step, first + i), as
 * a signed number, are below threshold - 2^31. threshold: probability * 2^32, in [0, 2^32]. The same call on dy gives
 * dx. x, y (may alias x): dtype F32 or BF16, [numel]. first >= 0: the index of the first element. */
FS_KERNEL(dropout, const void* x, void* y, int64_t numel, uint64_t seed, uint64_t step, int64_t first,
          int64_t threshold, float scale, int32_t dtype);

/* ---- softmax.cc --------------------------------------------------------------------------------- */

/* y = softmax(scale * x) row by row, scale >= 0; a row of -infinity alone gives NaN. x, y (may alias x): dtype F32 or
 * BF16, [rows, cols]. block_rows > 0: a causal limit, row r sees the first min(cols, r % block_rows + offset + 1) columns,
 * offset >= 0; x is not read beyond them and y is 0 there. block_rows 0: no limit. */
FS_KERNEL(softmax_forward, const void* x, void* y, int64_t rows, int64_t cols, float scale, int64_t block_rows,
          int64_t offset, int32_t dtype);
/* dx = scale * y * (dy - sum(dy * y)), over the columns that the row sees, 0 beyond. dx may alias dy or y. */
FS_KERNEL(softmax_backward, const void* dy, const void* y, void* dx, int64_t rows, int64_t cols, float scale,
          int64_t block_rows, int64_t offset, int32_t dtype);

/* ---- attention.cc ------------------------------------------------------------------------------- */

/* out = softmax(scale q k^T + mask) v for each head, and lse ([batch, heads, queries], or NULL) the logarithm of the
 * sums of exponentials, +infinity for a query that sees no key: its row of out is 0. The softmax sees keys 0 to i alone
 * of query i if causal. Heads are shared: head h of q meets head h / (heads / kv_heads) of k and v.
 * sizes: batch, heads, kv_heads, queries, keys, dim, value_dim; kv_heads divides heads, dim and value_dim are >= 1.
 * strides, in elements: three for each of q, k, v, out (batch, head, row; the last dimension is dense), then four of
 * the mask (batch, head, query, key; 0 where it is broadcast). q, k, v, out: dtype F32 or BF16. mask or NULL:
 * mask_dtype F32 or BF16, added to the scores, or -1 for bytes, zero hiding the key; what a whole block of queries
 * does not see is not read. Probabilities are dropped as in dropout.cc with the random bits of (seed, step 0, stream
 * batch * heads + head, query * keys + key modulo 2^32); the others are multiplied by kept; threshold 0 drops none. */
FS_KERNEL(attention_forward, const void* q, const void* k, const void* v, const void* mask, void* out, float* lse,
          const int64_t* sizes, const int64_t* strides, float scale, int32_t causal, uint64_t seed, int64_t threshold,
          float kept, int32_t dtype, int32_t mask_dtype);
/* Gradients of the same from out and lse. delta: [batch, heads, queries], written: sum(dout * out). dq, dk, dv: as q,
 * k, v, each or NULL. strides: those of forward, then three for each of dout, dq, dk, dv. */
FS_KERNEL(attention_backward, const void* dout, const void* q, const void* k, const void* v, const void* mask,
          const void* out, const float* lse, float* delta, void* dq, void* dk, void* dv, const int64_t* sizes,
          const int64_t* strides, float scale, int32_t causal, uint64_t seed, int64_t threshold, float kept,
          int32_t dtype, int32_t mask_dtype);

/* ---- gemm.cc ------------------------------------------------------------------------------------- */

/* c = activation(a b + bias), with accumulate activation(c + a b + bias). a: a_dtype, [m, k]; b: b_dtype, [k, n];
 * element (i, j) of each stands at i * row_stride + j * col_stride, so that transposed matrices need no copy. bias (or
 * NULL): bias_dtype, [n]. c: c_dtype, [m, n], rows c_row_stride apart, c_row_stride >= n. pre (or NULL): like c,
 * receives the argument of the activation. squares (or NULL): the sum of the squares of what was written to c, in
 * double (bf16 in fp32 within a tile). All dtypes F32 or BF16. Sums in fp32 in an order that the call decides, squares
 * apart: the same bits for any number of threads. Where a and b are bf16 and the variant has instructions for
 * them, denormals count as zero and two or more products are added before they are added to the sum. k = 0 gives a
 * product of 0. */
FS_KERNEL(gemm, const void* a, const void* b, const void* bias, void* c, void* pre, double* squares, int64_t m, int64_t n,
          int64_t k, int64_t a_row_stride, int64_t a_col_stride, int64_t b_row_stride, int64_t b_col_stride,
          int64_t c_row_stride, int32_t accumulate, int32_t activation, int32_t a_dtype, int32_t b_dtype,
          int32_t c_dtype, int32_t bias_dtype);

#ifdef __cplusplus
}
#endif
#endif
