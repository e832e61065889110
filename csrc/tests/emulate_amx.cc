// Runs AMX-BF16 code on a CPU without AMX, so that the `amx` variant can be tested there. A library to preload:
//
//   g++ -std=c++20 -O3 -Wall -Wextra -mavx512f -shared -fPIC csrc/tests/emulate_amx.cc -o build/emulate_amx.so
//   LD_PRELOAD=$PWD/build/emulate_amx.so FULLSTRIDE_ISA=amx .venv/bin/python -m pytest tests/ops/test_gemm.py
//
// How: an AMX instruction raises SIGILL here. The handler decodes it, executes it on tiles of the thread's own, goes
// on with the AMX instructions that directly follow, and returns behind them. A signal takes 9 us of CPU time in a
// virtual machine on Zen 4, two thirds of it the hypervisor's, an instruction 0.1 to 0.25 us.
//
// Results are bit for bit those of Intel's pseudo-code (SDM volume 2: TDPBF16PS and its sisters), except which of
// several NaNs survives. What the CPU refuses, bad configurations and shapes, tiles without the kernel's permission, is
// explained on stderr and ends as any illegal instruction does. emulate_amx_test.cc tests this, and how fast it is.
//
// Not as on the CPU: a configuration that is refused gives SIGILL, not SIGSEGV. A page fault is one of the handler's.
// Signal handlers share the tiles of the thread they interrupt. A thread that blocks SIGILL is killed by its first AMX
// instruction. CPUID still says that there is no AMX: programs should ask for fs_emulates_amx as well, a weak symbol.
// Needs x86-64 Linux, glibc and AVX-512.
#include <errno.h>
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

// glibc's own, under the names that this library does not take over.
extern "C" int __sigaction(int number, const struct sigaction* action, struct sigaction* old) noexcept;
extern "C" int arch_prctl(int code, unsigned long argument) noexcept;

namespace {

// ---- tiles --------------------------------------------------------------------------------------------------
constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;  // palette 1, the only one

struct Config {  // as LDTILECFG reads it
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[kTiles], reserved_row_bytes[kTiles];
  uint8_t rows[kTiles], reserved_rows[kTiles];
};
static_assert(sizeof(Config) == 64);

typedef uint32_t Words __attribute__((vector_size(kRowBytes)));
typedef float Floats __attribute__((vector_size(kRowBytes)));
struct Tile {
  Words row[kRows];  // of which no instruction shows more than is configured; the CPU has zeros there
};
struct State {
  Config config;  // palette 0: not configured
  Tile tiles[kTiles];
};

// Initial-exec: any other access to it may allocate memory, which a signal handler must not.
__attribute__((tls_model("initial-exec"))) constinit thread_local State state{};

// ---- decoding -----------------------------------------------------------------------------------------------
enum Operation { kUnknown, kAddress, kLoadConfig, kStoreConfig, kRelease, kZero, kLoad, kStore, kMultiply };
constexpr const char* kNames[] = {"",         "lea",       "ldtilecfg",  "sttilecfg", "tilerelease",
                                  "tilezero", "tileloadd", "tilestored", "tdpbf16ps"};
constexpr uint8_t kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

struct Memory {
  uint64_t address;    // base and displacement
  uint64_t index;      // times scale: to tiles it is the stride
  const uint8_t* end;  // of the bytes that say so
};

struct Instruction {
  Operation operation;
  int tile;         // what is loaded, stored, zeroed or added to; of kAddress the register
  int left, right;  // the factors of kMultiply
  Memory memory;    // its end is the instruction's
};

// From the ModRM byte on. A prefix gives what is to be added to a register's number: 8 for r8 to r15, otherwise 0.
Memory decode_memory(const uint8_t* at, int high_index, int high_base, const greg_t* registers) {
  const auto value_of = [=](int number) { return static_cast<uint64_t>(registers[kRegisters[number]]); };
  Memory result = {};
  const int mode = *at >> 6;
  int base = *at++ & 7;
  const bool has_index = base == 4;
  if (has_index) {
    const int scaled = *at++, index = (scaled >> 3 & 7) + high_index;
    if (index != 4) result.index = value_of(index) << (scaled >> 6);
    base = scaled & 7;
  }
  const bool has_base = mode != 0 || base != 5;
  if (has_base) result.address = value_of(base + high_base);
  if (mode == 1) {
    result.address += static_cast<int8_t>(*at++);
  } else if (mode == 2 || !has_base) {
    int32_t displacement;
    memcpy(&displacement, at, sizeof(displacement));
    at += sizeof(displacement);
    result.address += displacement;
  }
  if (!has_base && !has_index) result.address += reinterpret_cast<uint64_t>(at);  // of the next instruction
  result.end = at;
  return result;
}

Operation operation_of(int opcode, int prefix, int modrm) {  // prefix: 0 none, 1 66, 2 F3, 3 F2
  const bool in_memory = modrm < 0xc0;
  const int extension = modrm >> 3 & 7, last = modrm & 7;
  if (opcode == 0x49 && in_memory && extension == 0 && prefix < 2) return prefix ? kStoreConfig : kLoadConfig;
  if (opcode == 0x49 && modrm == 0xc0 && prefix == 0) return kRelease;
  if (opcode == 0x49 && !in_memory && last == 0 && prefix == 3) return kZero;
  if (opcode == 0x4b && in_memory && last == 4 && prefix > 0) return prefix == 2 ? kStore : kLoad;
  if (opcode == 0x5c && !in_memory && prefix == 2) return kMultiply;
  return kUnknown;
}

// Reads no byte that the instruction cannot have: the next page may not be there.
Instruction decode(const uint8_t* at, const greg_t* registers) {
  // LEA is no AMX instruction, but the one that compilers put between two loads. Executed here it spares a signal.
  if ((at[0] & 0xf8) == 0x48 && at[1] == 0x8d && at[2] < 0xc0)
    return {kAddress, (at[2] >> 3 & 7) + (at[0] & 4 ? 8 : 0), 0, 0,
            decode_memory(at + 2, at[0] & 2 ? 8 : 0, at[0] & 1 ? 8 : 0, registers)};
  const bool in_thread = *at == 0x64;  // relative to FS: a thread_local configuration
  at += in_thread;
  // Three bytes of VEX: C4; R, X and B inverted, map 0F38; W0, a third register inverted, 128 bits, prefix.
  if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0) return {};
  const bool high_tile = !(at[1] & 0x80);
  const int high_index = at[1] & 0x40 ? 0 : 8, high_base = at[1] & 0x20 ? 0 : 8;
  const int third = ~at[2] >> 3 & 15, modrm = at[4];
  Instruction result = {operation_of(at[3], at[2] & 3, modrm), modrm >> 3 & 7, modrm & 7, third, {0, 0, at + 5}};
  if (high_tile || third >= (result.operation == kMultiply ? kTiles : 1)) return {};
  if (modrm >= 0xc0) return high_base ? Instruction{} : result;
  result.memory = decode_memory(at + 4, high_index, high_base, registers);
  if (in_thread) result.memory.address += reinterpret_cast<uint64_t>(__builtin_thread_pointer());
  return result;
}

// ---- executing ----------------------------------------------------------------------------------------------
template <size_t n, class T>
bool is_zero(const T (&values)[n]) {
  for (const T value : values)
    if (value) return false;
  return true;
}

// Why LDTILECFG refuses it, or null.
const char* fault_of(const Config& config) {
  if (config.palette == 0) return nullptr;
  if (config.palette != 1) return "the palette must be 0 or 1";
  if (!is_zero(config.reserved) || !is_zero(config.reserved_row_bytes) || !is_zero(config.reserved_rows))
    return "reserved bytes must be 0";
  for (int tile = 0; tile < kTiles; ++tile) {
    if (config.rows[tile] > kRows || config.row_bytes[tile] > kRowBytes) return "more than 16 rows or 64 bytes a row";
    if (!config.row_bytes[tile] != !config.rows[tile]) return "a tile has rows without bytes, or bytes without rows";
  }
  return nullptr;
}

// The kernel's permission to use tile data, for the whole process.
std::atomic<bool> permitted = false;

// Why instructions on tile data refuse to use this one, or null.
const char* fault_of(int tile) {
  if (!permitted) return "no permission: call arch_prctl(ARCH_REQ_XCOMP_PERM, 18) first";
  if (!state.config.palette) return "tiles are not configured";
  if (!state.config.rows[tile]) return "a tile is used that the configuration leaves out";
  return nullptr;
}

const char* fault_of_product(int sum, int left, int right) {
  const Config& config = state.config;
  for (const int tile : {sum, left, right}) {
    if (const char* fault = fault_of(tile)) return fault;
    if (config.row_bytes[tile] % 4) return "bytes of a row must be a multiple of 4";
  }
  if (sum == left || sum == right || left == right) return "the three tiles must be different ones";
  if (config.rows[sum] != config.rows[left]) return "the sum must have as many rows as the left factor";
  if (config.row_bytes[sum] != config.row_bytes[right]) return "the sum must have rows as long as the right factor";
  if (config.row_bytes[left] / 4 != config.rows[right]) return "the factors differ in their common size";
  return nullptr;
}

// Products of even and of odd elements are summed apart, from zero and over the whole depth; then come their sum, and
// only then what the tile held before. VDPBF16PS works in another order.
__attribute__((noinline)) void multiply(Tile& sum, const Tile& left, const Tile& right, int rows, int depth) {
  const auto even_of = [](Words pairs) { return reinterpret_cast<Floats>(pairs << 16); };
  const auto odd_of = [](Words pairs) { return reinterpret_cast<Floats>(pairs & 0xffff0000); };
  Floats left_even[kRows], left_odd[kRows];
  for (int row = 0; row < kRows; ++row) {
    left_even[row] = even_of(left.row[row]);
    left_odd[row] = odd_of(left.row[row]);
  }
  constexpr int kTogether = 4;  // rows: enough independent sums to hide the latency of FMA
  for (int first = 0; first < rows; first += kTogether) {
    Floats even[kTogether] = {}, odd[kTogether] = {};
    for (int k = 0; k < depth; ++k)
      for (int i = 0; i < kTogether; ++i) {
        even[i] = _mm512_fmadd_ps(_mm512_set1_ps(left_even[first + i][k]), even_of(right.row[k]), even[i]);
        odd[i] = _mm512_fmadd_ps(_mm512_set1_ps(left_odd[first + i][k]), odd_of(right.row[k]), odd[i]);
      }
    for (int i = 0; i < kTogether; ++i) {
      Words& row = sum.row[first + i];
      row = reinterpret_cast<Words>(reinterpret_cast<Floats>(row) + (even[i] + odd[i]));
    }
  }
}

// Why the CPU would refuse it, or null if it was executed.
const char* execute(const Instruction& instruction, greg_t* registers) {
  const Memory& memory = instruction.memory;
  if (instruction.operation == kAddress) {
    registers[kRegisters[instruction.tile]] = memory.address + memory.index;
    return nullptr;
  }
  Config& config = state.config;
  const int tile = instruction.tile, rows = config.rows[tile], row_bytes = config.row_bytes[tile];
  Tile& data = state.tiles[tile];
  switch (instruction.operation) {
    case kLoadConfig: {
      Config next;
      memcpy(&next, reinterpret_cast<void*>(memory.address + memory.index), sizeof(next));
      if (const char* fault = fault_of(next)) return fault;
      state = {.config = next.palette ? next : Config{}, .tiles = {}};
      return nullptr;
    }
    case kStoreConfig:
      memcpy(reinterpret_cast<void*>(memory.address + memory.index), &config, sizeof(config));
      return nullptr;
    case kRelease:
      state = {};
      return nullptr;
    case kZero:
      if (const char* fault = fault_of(tile)) return fault;
      data = {};
      break;
    case kLoad:
    case kStore:
      if (const char* fault = fault_of(tile)) return fault;
      if (row_bytes % 4) return "bytes of a row must be a multiple of 4";
      if (config.start_row >= rows) return "start_row is beyond the rows of the tile";
      for (int row = config.start_row; row < rows; ++row) {
        void* const at = reinterpret_cast<void*>(memory.address + row * memory.index);
        const bool loads = instruction.operation == kLoad;
        memcpy(loads ? &data.row[row] : at, loads ? at : &data.row[row], row_bytes);
      }
      break;
    case kMultiply:
      if (const char* fault = fault_of_product(tile, instruction.left, instruction.right)) return fault;
      _mm_setcsr(0x9fc0);  // DAZ, FTZ, nearest even, no exceptions; the kernel restores the interrupted code's own
      multiply(data, state.tiles[instruction.left], state.tiles[instruction.right], rows,
               config.rows[instruction.right]);
      break;
    default:
      break;
  }
  config.start_row = 0;
  return nullptr;
}

// ---- the signal ---------------------------------------------------------------------------------------------
struct sigaction theirs;  // what the process wants to be done about SIGILL; at first, as here, the default

// A SIGILL that is not for this library, as if it were not there.
void pass_on(int number, siginfo_t* information, ucontext_t* context) {
  const struct sigaction action = theirs;
  const bool was_sent = information->si_code <= 0;  // by kill() or raise()
  if (action.sa_handler == SIG_IGN && was_sent) return;
  if (action.sa_handler == SIG_IGN || action.sa_handler == SIG_DFL) {
    const struct sigaction fatal = {};
    __sigaction(number, &fatal, nullptr);
    if (was_sent) raise(number);  // otherwise the instruction raises it again
    return;
  }
  if (action.sa_flags & SA_RESETHAND) theirs = {};
  sigset_t mask;
  sigorset(&mask, &context->uc_sigmask, &action.sa_mask);
  if (!(action.sa_flags & SA_NODEFER)) sigaddset(&mask, number);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (action.sa_flags & SA_SIGINFO)
    action.sa_sigaction(number, information, context);
  else
    action.sa_handler(number);
}

void handle(int number, siginfo_t* information, void* pointer) {
  ucontext_t* const context = static_cast<ucontext_t*>(pointer);
  greg_t* const registers = context->uc_mcontext.gregs;
  int num_executed = 0;
  if (information->si_code > 0) {
    for (;; ++num_executed) {
      const Instruction instruction = decode(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
      if (instruction.operation == kUnknown) break;
      if (const char* fault = execute(instruction, registers)) {
        // If others were executed, this one raises a SIGILL of its own.
        if (!num_executed)
          dprintf(STDERR_FILENO, "emulate_amx: %s at %#llx: %s\n", kNames[instruction.operation],
                  static_cast<unsigned long long>(registers[REG_RIP]), fault);
        break;
      }
      registers[REG_RIP] = reinterpret_cast<greg_t>(instruction.memory.end);
    }
  }
  if (!num_executed) pass_on(number, information, context);
}

// No SA_ONSTACK: alternate stacks may be too small for the frame, and SIGILL does not come from a full stack.
// SA_NODEFER: the handler of a fault in a tile's memory may use AMX, or end by longjmp.
__attribute__((constructor)) void start() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigfillset(&action.sa_mask);  // so that no other handler sees half an instruction
  for (const int fault : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) sigdelset(&action.sa_mask, fault);
  if (__sigaction(SIGILL, &action, nullptr)) perror("emulate_amx: SIGILL cannot be handled");
}

}  // namespace

// ---- what takes the place of glibc's ------------------------------------------------------------------------
extern "C" int fs_emulates_amx(void) { return 1; }

extern "C" int sigaction(int number, const struct sigaction* action, struct sigaction* old) noexcept {
  if (number != SIGILL) return __sigaction(number, action, old);
  const struct sigaction before = theirs;
  if (action) theirs = *action;
  if (old) *old = before;
  return 0;
}

extern "C" sighandler_t signal(int number, sighandler_t handler) noexcept {
  if (number != SIGILL) return ssignal(number, handler);  // glibc's other name for it
  struct sigaction action = {}, before;
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, &before);
  return before.sa_handler;
}

extern "C" __attribute__((visibility("hidden"), used)) long answer_arch_prctl(long, int code, unsigned long argument) {
  constexpr int kGetPermission = 0x1022, kRequestPermission = 0x1023;
  constexpr uint64_t kTileConfig = 17, kTileData = 18;  // components of the state that XSAVE saves
  if (code == kRequestPermission && argument == kTileData) {
    permitted = true;
    return 0;
  }
  const int result = arch_prctl(code, argument);
  if (code == kGetPermission && result == 0)  // as on the CPU: the configuration needs no request
    *reinterpret_cast<uint64_t*>(argument) |= 1 << kTileConfig | uint64_t{permitted} << kTileData;
  return result;
}

extern "C" __attribute__((visibility("hidden"), used)) long fail(long negated) {
  errno = -negated;
  return -1;
}

// Assembly, as in glibc: it passes on six arguments without knowing how many of them there are.
static_assert(SYS_arch_prctl == 158);
extern "C" __attribute__((naked)) long syscall(long, ...) noexcept {
  asm(R"(
      cmp $158, %rdi
      je answer_arch_prctl
      mov %rdi, %rax
      mov %rsi, %rdi
      mov %rdx, %rsi
      mov %rcx, %rdx
      mov %r8, %r10
      mov %r9, %r8
      mov 8(%rsp), %r9
      syscall
      mov %rax, %rdi
      cmp $-4095, %rax
      jae fail
      ret)");
}
