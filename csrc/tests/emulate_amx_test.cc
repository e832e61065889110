// Tests emulate_amx.cc; without it, on a CPU with AMX, what that emulates. A program of its own, hence not test_*.cc.
//
//   g++ -std=c++20 -O2 -mamx-tile -mamx-bf16 -mavx512f -pthread csrc/tests/emulate_amx_test.cc -o build/test_amx
//   LD_PRELOAD=$PWD/build/emulate_amx.so build/test_amx [speed]
#include <immintrin.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <random>
#include <thread>
#include <vector>

static int num_failures;
#define CHECK(condition) \
  if (!(condition)) ++num_failures, printf("%s:%d: %s: not true\n", __FILE__, __LINE__, #condition)

struct Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  void set(int tile, int num_rows, int num_bytes) { rows[tile] = num_rows, row_bytes[tile] = num_bytes; }
};

// GCC 12's intrinsics say that configurations have 8 bytes, and not that loads read memory: what is stored before them
// may be dropped or come too late.
static void load_config(const Config& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
static void store_config(Config& config) { asm volatile("sttilecfg %0" : "=m"(config)); }
#define LOAD_TILE(tile, from, stride)                 \
  do {                                                \
    asm volatile("" : : "r"(from) : "memory");        \
    _tile_loadd(tile, from, stride);                  \
  } while (0)

// Tiles 0, 1 and 2 for (rows x 2 depth) * (2 depth x columns), as pairs lie in them.
static Config config_of_product(int rows, int depth, int columns) {
  Config config;
  config.set(0, rows, 4 * columns);
  config.set(1, rows, 4 * depth);
  config.set(2, depth, 4 * columns);
  return config;
}

// ---- the arithmetic -----------------------------------------------------------------------------------------
static float widen(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }
static bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (isnan(a) && isnan(b));
}

struct Product {
  static const int kPadding = 3;  // pairs behind each row, which are not the tile's
  int rows, depth, columns;
  int left_stride = depth + kPadding, stride = columns + kPadding;  // in pairs
  std::vector<uint16_t> left = std::vector<uint16_t>(2 * rows * left_stride);
  std::vector<uint16_t> right = std::vector<uint16_t>(2 * depth * stride);
  std::vector<float> sum = std::vector<float>(rows * stride);

  // Intel's pseudo-code, one element after the other.
  __attribute__((noinline, target("fma"))) std::vector<float> expected() const {
    std::vector<float> result = sum;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    for (int m = 0; m < rows; ++m)
      for (int n = 0; n < columns; ++n) {
        float even = 0, odd = 0;
        for (int k = 0; k < depth; ++k) {
          const uint16_t *a = &left[2 * (m * left_stride + k)], *b = &right[2 * (k * stride + n)];
          even = __builtin_fmaf(widen(a[0]), widen(b[0]), even);
          odd = __builtin_fmaf(widen(a[1]), widen(b[1]), odd);
        }
        result[m * stride + n] += even + odd;
      }
    _mm_setcsr(before);
    return result;
  }

  void compute() {
    const Config config = config_of_product(rows, depth, columns);
    load_config(config);
    LOAD_TILE(0, sum.data(), 4 * stride);
    LOAD_TILE(1, left.data(), 4 * left_stride);
    _tile_stream_loadd(2, right.data(), 4 * stride);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, sum.data(), 4 * stride);
    _tile_release();
  }
};

// kind 0: of about 1; 1: any finite number, mostly very large or small; 2: any bits at all; 3: products near 2^-126
static uint16_t random_value(std::mt19937& random, int kind) {
  const uint16_t bits = random();
  const int exponent = bits >> 7 & 255;
  if (kind == 0) return (bits & 0x80ff) | 0x3f00;
  if (kind == 1 && exponent == 255) return bits & 0xbfff;
  if (kind == 3) return (bits & 0x807f) | (60 + bits % 7) << 7;
  return bits;
}

static int num_different(unsigned seed, int num_products) {
  std::mt19937 random(seed);
  int result = 0;
  for (int i = 0; i < num_products; ++i) {
    const int kind = i % 4, rows = 1 + random() % 16, depth = 1 + random() % 16, columns = 1 + random() % 16;
    Product product = {rows, depth, columns};
    for (auto& value : product.left) value = random_value(random, kind);
    for (auto& value : product.right) value = random_value(random, kind);
    for (auto& value : product.sum) value = widen(random_value(random, kind)) * (kind == 3 ? 0x1p-63f : 1);
    const std::vector<float> expected = product.expected();
    product.compute();
    for (size_t j = 0; j < expected.size(); ++j) result += !same(product.sum[j], expected[j]);  // also between rows
  }
  return result;
}

static void products_are_the_pseudo_codes() { CHECK(num_different(1, 4000) == 0); }

// One pair by one pair: sum + (a * b + c * d).
static float one(float sum, float a, float b, float c, float d) {
  const auto narrow = [](float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); };
  Product product = {1, 1, 1};
  product.left[0] = narrow(a), product.right[0] = narrow(b);
  product.left[1] = narrow(c), product.right[1] = narrow(d);
  product.sum[0] = sum;
  product.compute();
  return product.sum[0];
}

static void special_values() {
  const float denormal = 0x1p-130f, infinite = INFINITY;
  CHECK(same(one(1, 2, 3, 4, 5), 27));
  CHECK(same(one(denormal, 0, 0, 0, 0), 0));                         // denormal sums count as 0,
  CHECK(same(one(0, denormal, 0x1p120f, 0, 0), 0));                  // denormal factors,
  CHECK(same(one(0, 0x1p-100f, 0x1p-30f, 0x1p-100f, 0x1p30f), 0x1p-70f));  // denormal products,
  CHECK(same(one(-0.f, -0x1p-100f, 0x1p-30f, -0.f, 1), 0));          // sums that start at +0,
  CHECK(same(one(0x1p-126f, -0x1.8p-126f, 1, 0, 0), -0.f));          // and results, which keep their sign
  CHECK(same(one(0x1p24f, 1, 1, 1, 1), 0x1p24f + 2));                // the pair is added up first
  CHECK(same(one(0x1p24f, 1, 1, 0, 0), 0x1p24f));                    // to nearest even
  CHECK(isnan(one(0, infinite, 0, 0, 0)) && isnan(one(0, infinite, denormal, 0, 0)));
  CHECK(isnan(one(0, infinite, 1, infinite, -1)) && isnan(one(NAN, 1, 1, 1, 1)) && isnan(one(0, NAN, 0, 0, 0)));
  CHECK(same(one(1, infinite, -2, 3, 4), -infinite));
  CHECK(same(one(0, 0x1p127f, 2, 0, 0), infinite));
}

static void mxcsr_is_neither_read_nor_written() {
  const unsigned before = _mm_getcsr(), towards_zero = 0x7f80;  // and no flag raised so far
  _mm_setcsr(towards_zero);
  const float rounded = one(0x1.fffffep23f, 1.5f, 1, 0, 0);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  CHECK(rounded == 0x1p24f && after == towards_zero);
}

// ---- the tiles ----------------------------------------------------------------------------------------------
static void configurations_come_back() {
  Config config = config_of_product(3, 5, 7), stored;
  config.start_row = 2;
  load_config(config);
  store_config(stored);
  CHECK(memcmp(&config, &stored, sizeof(config)) == 0);
  _tile_zero(0);
  store_config(stored);
  CHECK(stored.start_row == 0);
  _tile_release();
  store_config(stored);
  CHECK(stored.palette == 0 && stored.rows[0] == 0);
}

static void configuring_zeroes_and_start_row_skips() {
  int from[4] = {1, 2, 3, 4}, to[4] = {};
  Config config;
  config.set(0, 4, 4);
  config.start_row = 2;
  load_config(config);
  LOAD_TILE(0, from, 4);
  LOAD_TILE(0, from, 4);
  _tile_stored(0, to, 4);
  CHECK(memcmp(from, to, sizeof(from)) == 0);  // start_row was for the first instruction only
  load_config(config);
  LOAD_TILE(0, from, 4);
  _tile_stored(0, to, 4);
  CHECK(to[0] == 0 && to[1] == 0 && to[2] == 3 && to[3] == 4);
  _tile_release();
}

static thread_local Config thread_config;

static void memory_is_addressed_in_all_ways() {
  static Config config;
  config.set(0, 4, 4);
  config.set(7, 4, 4);
  static Config stored[2];
  load_config(config);  // relative to the next instruction
  asm volatile("sttilecfg 64(%0,%1,8)" : : "r"(stored), "r"(-8L) : "memory");
  CHECK(memcmp(&config, stored, sizeof(config)) == 0);
  thread_config = config;
  load_config(thread_config);  // relative to FS

  // No base register, for which memory below 2 GiB is needed; a null base; all others with index, scale and offset.
  int* const low = static_cast<int*>(mmap(reinterpret_cast<void*>(0x10000000), 4096, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
  CHECK(low == reinterpret_cast<int*>(0x10000000));
  for (int i = 0; i < 1024; ++i) low[i] = i;
  int to[4];
  const auto loaded = [&](int first, int step) {
    _tile_stored(7, to, 4);
    _tile_zero(7);
    return to[0] == first && to[1] == first + step && to[2] == first + 2 * step && to[3] == first + 3 * step;
  };
  asm volatile("tileloadd 0x10000010(,%0,2), %%tmm7" : : "r"(4L) : "memory");
  CHECK(loaded(4, 2));
  asm volatile("tileloadd 0x10000010, %tmm7");
  CHECK(loaded(4, 0));
#define LOAD(base, index, scale, offset, first, step)                                                          \
  asm volatile("mov %0, %%" base "\n mov $8, %%" index "\n tileloadd " offset "(%%" base ",%%" index "," scale \
               "), %%tmm7" : : "r"(low + 512) : base, index, "memory");                                        \
  CHECK(loaded(first, step))
  LOAD("rax", "rcx", "1", "", 512, 2);
  LOAD("rdx", "rbx", "4", "-128", 480, 8);
  LOAD("rsi", "rdi", "8", "127*4", 639, 16);
  LOAD("r8", "r9", "1", "", 512, 2);
  LOAD("r12", "r13", "2", "4", 513, 4);
  LOAD("r13", "r12", "2", "", 512, 4);  // an index of 12 is one, unlike 4; a base of 13 needs an offset, like 5
  LOAD("r14", "r15", "4", "1024", 768, 8);
  LOAD("r10", "r11", "1", "-8", 510, 2);
  LOAD("rax", "r12", "1", "", 512, 2);
#undef LOAD
  // Addresses that are computed between two instructions, and a register that is both the result and an operand.
  long first, second = 3;
  asm volatile("tilezero %%tmm7\n lea -16(%2,%1,4), %0\n lea 1000(%1), %1\n tileloadd (%2,%3,1), %%tmm7"
               : "=&r"(first), "+r"(second) : "r"(low), "r"(4L));
  CHECK(loaded(0, 1) && first == 0x10000000 - 4 && second == 1003);
  asm volatile("mov $5, %%r12\n mov $7, %%r13\n tilezero %%tmm7\n lea 8(%%r12,%%r13,8), %%r11\n"
               "lea (,%%r11,2), %0\n tilezero %%tmm7" : "=r"(first) : : "r11", "r12", "r13");
  CHECK(first == 2 * (8 + 5 + 7 * 8));
  LOAD_TILE(7, low + 512, -8);
  CHECK(loaded(512, -2));
  munmap(low, 4096);
  _tile_release();
}

// A value below the stack pointer, one in a vector and one in a mask, and the flags, over 3 instructions.
__attribute__((naked, noinline)) static long survives(long, const Config*) {
  asm(R"(
      mov %rdi, -8(%rsp); mov %rdi, -128(%rsp); vpbroadcastq %rdi, %zmm17; kmovw %edi, %k3; cmp %rdi, %rdi
      ldtilecfg (%rsi); tilezero %tmm0; tilerelease
      jne 1f
      cmp %rdi, -8(%rsp); jne 1f
      cmp %rdi, -128(%rsp); jne 1f
      kmovw %k3, %eax; cmp %edi, %eax; jne 1f
      vpbroadcastq %rdi, %zmm16; vpcmpeqq %zmm16, %zmm17, %k1; kmovw %k1, %eax; cmp $255, %eax; jne 1f
      mov $1, %eax; ret
   1: xor %eax, %eax; ret)");
}

static void everything_else_survives() {
  const Config config = config_of_product(16, 16, 16);
  CHECK(survives(12345, &config) == 1);
}

// ---- threads and processes ----------------------------------------------------------------------------------
static void threads_have_tiles_of_their_own() {
  int different[4] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&different, i] { different[i] = num_different(i, 2000); });
  for (auto& thread : threads) thread.join();
  for (const int count : different) CHECK(count == 0);
}

static void a_child_inherits_tiles() {
  int value = 42, stored = 0;
  Config config;
  config.set(0, 1, 4);
  load_config(config);
  LOAD_TILE(0, &value, 4);
  const pid_t child = fork();
  _tile_stored(0, &stored, 4);
  if (child == 0) {
    _tile_zero(0);
    _exit(stored == 42 && num_different(3, 100) == 0 ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  stored = 0;
  _tile_stored(0, &stored, 4);
  CHECK(stored == 42);
  _tile_release();
}

// ---- other handlers of SIGILL -------------------------------------------------------------------------------
static int num_handled;
static void count(int) { ++num_handled; }
static void skip_ud2(int, siginfo_t*, void* context) {
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  num_handled += sigismember(&blocked, SIGILL) && !sigismember(&blocked, SIGUSR1);  // as sigaction was told to
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] += 2;
}
static sigjmp_buf before;
static void jump(int) { siglongjmp(before, 1); }
static void use_and_jump(int) { siglongjmp(before, num_different(6, 10) == 0 ? 1 : 2); }

static void other_handlers_see_what_is_not_amx() {
  struct sigaction action = {}, old;
  action.sa_sigaction = skip_ud2;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &old);
  CHECK(old.sa_handler == SIG_DFL);
  CHECK(num_different(4, 10) == 0 && num_handled == 0);
  asm volatile("ud2");
  CHECK(num_handled == 1);
  CHECK(signal(SIGILL, count) == action.sa_handler);  // which shares its place with sa_sigaction
  raise(SIGILL);
  CHECK(num_handled == 2);
  CHECK(signal(SIGILL, SIG_IGN) == count);
  raise(SIGILL);
  CHECK(num_handled == 2);
  signal(SIGILL, jump);
  static int num_jumps = 0;
  while (sigsetjmp(before, 1) == 0 || ++num_jumps < 3) asm volatile("ud2");
  CHECK(num_jumps == 3 && num_different(5, 10) == 0);
  action.sa_handler = count;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGILL, &action, nullptr);
  raise(SIGILL);
  CHECK(num_handled == 3 && signal(SIGILL, SIG_DFL) == SIG_DFL);
}

static void handlers_of_page_faults_may_use_tiles() {
  signal(SIGSEGV, use_and_jump);
  const int jumped = sigsetjmp(before, 1);
  if (jumped == 0) {
    const Config config = config_of_product(1, 1, 1);
    load_config(config);
    LOAD_TILE(0, nullptr, 4);
  }
  CHECK(jumped == 1 && signal(SIGSEGV, SIG_DFL) == use_and_jump);
}

// ---- what must be refused -----------------------------------------------------------------------------------
template <class Action>
static int signal_that_ends(Action action) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    action();
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static bool is_refused(const Config& config) {
  const int number = signal_that_ends([&] { load_config(config); });
  return number == SIGILL || number == SIGSEGV;  // emulated, or by a CPU
}

static void bad_configurations_are_refused() {
  const Config good = config_of_product(16, 16, 16);
  CHECK(!is_refused(good));
  Config bad = good;
  bad.palette = 2;
  CHECK(is_refused(bad));
  for (const auto& [rows, bytes] : {std::pair{17, 64}, {16, 65}, {0, 64}, {16, 0}}) {
    bad = good;
    bad.set(3, rows, bytes);
    CHECK(is_refused(bad));
  }
  bad = good;
  bad.set(8, 1, 4);
  CHECK(is_refused(bad));
  bad = good;
  bad.reserved[13] = 1;
  CHECK(is_refused(bad));
  bad.palette = 0;  // nothing else is looked at
  CHECK(!is_refused(bad));
}

static void bad_uses_are_refused() {
  static char memory[1024];
  CHECK(signal_that_ends([] { asm volatile("ud2"); }) == SIGILL);
  CHECK(signal_that_ends([] { raise(SIGILL); }) == SIGILL);
  CHECK(signal_that_ends([] { _tile_zero(0); }) == SIGILL);
  const auto ends = [](const Config& config, auto action) {
    return signal_that_ends([&] {
      load_config(config);
      action();
    });
  };
  const auto multiply = [] { _tile_dpbf16ps(0, 1, 2); };
  Config config = config_of_product(4, 5, 6);
  CHECK(ends(config, multiply) == 0);
  CHECK(ends(config, [] { _tile_zero(3); }) == SIGILL);
  // One tile twice, which assemblers refuse as well: tdpbf16ps %tmm1, %tmm1, %tmm0
  CHECK(ends(config_of_product(4, 4, 4), [] { asm volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1"); }) == SIGILL);
  for (int tile = 0; tile < 3; ++tile) {
    Config bad = config;
    ++bad.rows[tile];
    CHECK(ends(bad, multiply) == SIGILL);
    bad = config;
    bad.row_bytes[tile] += 4;
    CHECK(ends(bad, multiply) == SIGILL);
  }
  config.row_bytes[0] = 6;
  CHECK(ends(config, [] { LOAD_TILE(0, memory, 64); }) == SIGILL);
  config.row_bytes[0] = 8;
  config.start_row = 4;
  CHECK(ends(config, [] { _tile_stored(0, memory, 64); }) == SIGILL);
  CHECK(ends(config, [] { LOAD_TILE(2, nullptr, 64); }) == SIGSEGV);
}

// ---- permission ---------------------------------------------------------------------------------------------
static void permission_is_asked_for() {
  const uint64_t tile_config = 1 << 17, tile_data = 1 << 18;
  uint64_t granted = 0;
  CHECK(syscall(SYS_arch_prctl, 0x1022, &granted) == 0 && (granted & (tile_config | tile_data)) == tile_config);
  const auto use = [] {
    const Config config = config_of_product(1, 1, 1);
    load_config(config);
    _tile_zero(0);
  };
  CHECK(signal_that_ends(use) == SIGILL);
  CHECK(syscall(SYS_arch_prctl, 0x1023, 18) == 0);
  CHECK(syscall(SYS_arch_prctl, 0x1022, &granted) == 0 && (granted & tile_data));
  CHECK(signal_that_ends(use) == 0);
}

static void other_system_calls_pass() {
  CHECK(syscall(SYS_getpid) == getpid());
  errno = 0;
  CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
  // Six arguments, the last of which counts: the second page of the file.
  const long file = syscall(SYS_memfd_create, "test", 0);
  const char byte = 7;
  CHECK(pwrite(file, &byte, 1, 4096) == 1);
  const char* page = reinterpret_cast<char*>(syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, file, 4096));
  CHECK(page != MAP_FAILED && page[0] == 7);
}

// ---- speed --------------------------------------------------------------------------------------------------
template <class Action>
static void report_speed(const char* name, int num_instructions, Action action) {
  const int num_repeats = 200000;
  timespec begin, end;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  for (int i = 0; i < num_repeats; ++i) action();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  const double seconds = end.tv_sec - begin.tv_sec + 1e-9 * (end.tv_nsec - begin.tv_nsec);
  printf("%s: %.2f us, %.2f million AMX instructions/s\n", name, 1e6 * seconds / num_repeats,
         1e-6 * num_repeats * num_instructions / seconds);
}

static void speed() {
  alignas(64) static char memory[1024];
  const Config config = [] {
    Config result;
    for (int tile = 0; tile < 8; ++tile) result.set(tile, 16, 64);
    return result;
  }();
  load_config(config);
  report_speed("tilezero, a trap", 1, [] { _tile_zero(0); });
  report_speed("tileloadd, a trap", 1, [] { LOAD_TILE(0, memory, 64); });
  report_speed("tdpbf16ps, a trap", 1, [] { _tile_dpbf16ps(0, 1, 2); });
  report_speed("4 loads, 4 products, a trap", 8, [] {
    asm volatile(R"(
      tileloadd (%0,%1,1), %%tmm4
      tileloadd (%0,%1,1), %%tmm5
      tileloadd (%0,%1,1), %%tmm6
      tileloadd (%0,%1,1), %%tmm7
      tdpbf16ps %%tmm6, %%tmm4, %%tmm0
      tdpbf16ps %%tmm7, %%tmm4, %%tmm1
      tdpbf16ps %%tmm6, %%tmm5, %%tmm2
      tdpbf16ps %%tmm7, %%tmm5, %%tmm3)" : : "r"(memory), "r"(64L));
  });
}

int main(int num_arguments, char** arguments) {
  permission_is_asked_for();  // first: it is granted for good
  if (num_failures) return puts("neither AMX nor emulate_amx.so is here"), 1;
  if (num_arguments > 1 && strcmp(arguments[1], "speed") == 0) return speed(), 0;
  other_system_calls_pass();
  products_are_the_pseudo_codes();
  special_values();
  mxcsr_is_neither_read_nor_written();
  configurations_come_back();
  configuring_zeroes_and_start_row_skips();
  memory_is_addressed_in_all_ways();
  everything_else_survives();
  threads_have_tiles_of_their_own();
  a_child_inherits_tiles();
  other_handlers_see_what_is_not_amx();
  handlers_of_page_faults_may_use_tiles();
  bad_configurations_are_refused();
  bad_uses_are_refused();
  printf(num_failures ? "%d failures\n" : "passed\n", num_failures);
  return num_failures != 0;
}
