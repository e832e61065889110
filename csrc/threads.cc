// Threads, floating-point mode and scratch memory, shared by all variants. Baseline flags only.
//
// OpenMP is used because torch does: both link libgomp.so.1, so there is one pool and torch.set_num_threads,
// which sets the calling thread's OpenMP limit, governs these kernels too.
//
// FS_STD_THREADS uses std::thread instead, for ThreadSanitizer, which knows nothing of libgomp's barriers and would
// take every loop for a race. Its threads live as long as one loop: slow, but for order there is nothing but their
// start and end.
#include "threads.h"

#include <atomic>
#include <stdlib.h>

#include "fullstride.h"
#if defined(FS_STD_THREADS)
#include <thread>
#include <vector>
#elif defined(_OPENMP)
#include <omp.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

std::atomic<int> flush_denormals{1};
std::atomic<int64_t> grain_override{0};
std::atomic<int64_t> welford_override{-1};

#if defined(__x86_64__)
using FpMode = unsigned;
constexpr FpMode kFlush = 0x8040;  // MXCSR: flush-to-zero and denormals-are-zero
FpMode get_mode() { return _mm_getcsr(); }
void set_mode(FpMode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
using FpMode = uint64_t;
constexpr FpMode kFlush = 1u << 24;  // FPCR.FZ, inputs and outputs
FpMode get_mode() {
  FpMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_mode(FpMode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
using FpMode = unsigned;
constexpr FpMode kFlush = 0;
FpMode get_mode() { return 0; }
void set_mode(FpMode) {}
#endif

// Stores around the cache are ordered by nothing else: before another thread reads them.
void drain_stores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Flushes denormals for one task on one thread; writing the register only when it changes keeps this at a few
// cycles where the whole pool flushes already.
struct FlushGuard {
  FpMode saved = get_mode();
  bool changed = flush_denormals.load(std::memory_order_relaxed) && (saved & kFlush) != kFlush;
  FlushGuard() {
    if (changed) set_mode(saved | kFlush);
  }
  ~FlushGuard() {
    if (changed) set_mode(saved);
  }
};

// fork() copies the record of the pool but not its threads, and libgomp then waits for them forever (GCC bug 60035). So
// kernels in a child process, a worker of torch's DataLoader for one, stay on the thread that calls them.
std::atomic<bool> forked{false};
#if !defined(_WIN32)
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif

// with_team(body) calls body(number, size) on each thread of a team: max_team() of them, or fewer (thread limit, dynamic
// adjustment).
#if defined(FS_STD_THREADS)
thread_local int wished_threads = 0;
thread_local bool in_team = false;

int max_team() {
  const int most = wished_threads ? wished_threads : static_cast<int>(std::thread::hardware_concurrency());
  return in_team || most < 1 ? 1 : most;
}

template <class Body>
void with_team(const Body& body) {
  const int size = max_team();
  const auto member = [&](int number) {
    in_team = true;
    body(number, size);
    in_team = false;
  };
  std::vector<std::thread> others;
  for (int number = 1; number < size; ++number) others.emplace_back(member, number);
  member(0);
  for (std::thread& other : others) other.join();
}
#elif defined(_OPENMP)
int max_team() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

template <class Body>
void with_team(const Body& body) {
#pragma omp parallel
  body(omp_get_thread_num(), omp_get_num_threads());
}
#else
int max_team() { return 1; }

template <class Body>
void with_team(const Body& body) {
  body(0, 1);
}
#endif

struct Scratch {
  void* data = nullptr;
  int64_t size = 0;
  ~Scratch() { free(data); }
};
thread_local Scratch scratch;

}  // namespace

extern "C" {

int32_t fs_max_threads(void) { return forked.load(std::memory_order_relaxed) ? 1 : max_team(); }

#if defined(FS_STD_THREADS)
void fs_internal_set_threads(int32_t num_threads) { wished_threads = num_threads; }
#endif

void fs_set_flush_denormals(int32_t on) { flush_denormals.store(on != 0); }

void fs_flush_denormals_everywhere(int32_t on) {
  const auto set = [=] { set_mode(on ? get_mode() | kFlush : get_mode() & ~kFlush); };
  if (fs_max_threads() == 1) return set();  // after fork() even a region of one thread may wait for the others
  with_team([&](int, int) { set(); });
}

void fs_set_grain(int64_t elements) { grain_override.store(elements); }

int64_t fs_internal_grain(int64_t measured) {
  const int64_t wish = grain_override.load(std::memory_order_relaxed);
  return wish > 0 ? wish : measured;
}

void fs_set_welford_cols(int64_t cols) { welford_override.store(cols); }

int64_t fs_internal_welford_cols(int64_t measured) {
  const int64_t wish = welford_override.load(std::memory_order_relaxed);
  return wish >= 0 ? wish : measured;
}

int fs_internal_num_threads(int64_t n, int64_t grain) {
  const int64_t worth = grain > 0 ? n / grain : n;
  const int64_t most = worth > 1 ? fs_max_threads() : 1;
  return static_cast<int>(worth < most ? worth : most);
}

void fs_internal_parallel(int64_t n, int64_t grain, fs_task task, void* context) {
  if (n <= 0) return;
  const int threads = fs_internal_num_threads(n, grain);
  if (threads <= 1) {
    FlushGuard guard;
    task(context, 0, n, 0);
    return;
  }
  // Always the whole team, also where few threads have work: libgomp ends the threads that a smaller team leaves over
  // and starts new ones for the next larger team, which costs a millisecond. Each thread takes every part whose number
  // is its own modulo the team: the cut never depends on what was granted.
  with_team([&](int number, int size) {
    FlushGuard guard;
    for (int part = number; part < threads; part += size)
      task(context, n * part / threads, n * (part + 1) / threads, part);
    drain_stores();
  });
}

void* fs_internal_scratch(int64_t bytes) {
  if (bytes > scratch.size) {
    free(scratch.data);
    const int64_t size = (bytes + 4095) / 4096 * 4096;
    scratch.data = aligned_alloc(64, static_cast<size_t>(size));
    if (!scratch.data) abort();
    scratch.size = size;
  }
  return scratch.data;
}

}  // extern "C"
