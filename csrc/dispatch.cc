// Which variants this machine can run. Compiled with baseline flags: it runs before anything is known.
#include "fullstride.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#define FS_STRING_(x) #x
#define FS_STRING(x) FS_STRING_(x)

namespace {

#if defined(__x86_64__)

struct Features {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
};

// A CPU bit is not enough: the operating system must save the wide registers, which XCR0 tells.
Features detect() {
  Features found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1, avx = c >> 28 & 1;
  if (!osxsave || !avx) return found;
  unsigned xcr0, xcr0_high;
  asm volatile("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  const bool saves_ymm = (xcr0 & 0x06) == 0x06, saves_zmm = (xcr0 & 0xe6) == 0xe6;
  unsigned b7, c7, d7, subleaves;
  if (!__get_cpuid_count(7, 0, &subleaves, &b7, &c7, &d7)) return found;
  found.avx2 = saves_ymm && fma && f16c && (b7 >> 5 & 1) && (b7 >> 8 & 1);  // AVX2, BMI2
  const bool f = b7 >> 16 & 1, dq = b7 >> 17 & 1, bw = b7 >> 30 & 1, vl = b7 >> 31 & 1;
  found.avx512 = found.avx2 && saves_zmm && f && dq && bw && vl;
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) found.avx512_bf16 = found.avx512 && (a >> 5 & 1);
  found.amx_bf16 = found.avx512_bf16 && (xcr0 >> 17 & 3) == 3 && (d7 >> 22 & 1) && (d7 >> 24 & 1);
  return found;
}

}  // namespace

// Defined by tests/emulate_amx.cc, which executes in software what the CPU lacks.
extern "C" __attribute__((weak)) int fs_emulates_amx(void);

namespace {

const Features features = detect();

// Linux keeps the 8 KiB of a thread's tiles only for processes that ask. Whether the CPU shows its palettes (leaves 0x1D
// and 0x1E) is no matter: some hypervisors hide them, and the one palette there is is known.
bool may_use_amx() {
#if defined(FS_HAS_AMX) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (!features.amx_bf16 && !(features.avx512_bf16 && fs_emulates_amx && fs_emulates_amx())) return false;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

const char* const names[FS_NUM_ISAS] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
bool supported(int32_t isa) {
  const bool able[] = {true, features.avx2, features.avx512, features.avx512_bf16};
  return isa < 4 ? able[isa] : may_use_amx();
}
// The matrix unit multiplies; everything else is AVX-512's.
int32_t base(int32_t isa) { return isa == 4 ? 3 : -1; }

#elif defined(__aarch64__)

bool has_bf16() {
#if defined(__linux__)
  return getauxval(AT_HWCAP2) >> 14 & 1;  // HWCAP2_BF16
#elif defined(__APPLE__)
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &value, &size, nullptr, 0) == 0 && value;
#else
  return false;
#endif
}

const char* const names[FS_NUM_ISAS] = {"portable", "neon", "neon_bf16"};
bool supported(int32_t isa) { return isa < 2 || has_bf16(); }  // NEON belongs to the architecture
int32_t base(int32_t) { return -1; }

#else

const char* const names[FS_NUM_ISAS] = {"portable"};
bool supported(int32_t) { return true; }
int32_t base(int32_t) { return -1; }

#endif

}  // namespace

extern "C" {

const char* fs_version(void) { return FS_STRING(FS_VERSION); }

const char* fs_isa_name(int32_t isa) { return isa >= 0 && isa < FS_NUM_ISAS ? names[isa] : nullptr; }

int32_t fs_isa_supported(int32_t isa) { return isa >= 0 && isa < FS_NUM_ISAS && supported(isa); }

int32_t fs_isa_base(int32_t isa) { return isa >= 0 && isa < FS_NUM_ISAS ? base(isa) : -1; }

}  // extern "C"
