// Which variants this machine can run. Compiled with baseline flags: it runs before anything is known.
#include "fullstride.h"

#if defined(__x86_64__)
#include <cpuid.h>
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
  bool avx2 = false, avx512 = false, avx512_bf16 = false;
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
  return found;
}

const Features features = detect();
const char* const names[FS_NUM_ISAS] = {"portable", "avx2", "avx512", "avx512_bf16"};
const bool supported[FS_NUM_ISAS] = {true, features.avx2, features.avx512, features.avx512_bf16};

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
const bool supported[FS_NUM_ISAS] = {true, true, has_bf16()};  // NEON belongs to the architecture

#else

const char* const names[FS_NUM_ISAS] = {"portable"};
const bool supported[FS_NUM_ISAS] = {true};

#endif

}  // namespace

extern "C" {

const char* fs_version(void) { return FS_STRING(FS_VERSION); }

const char* fs_isa_name(int32_t isa) { return isa >= 0 && isa < FS_NUM_ISAS ? names[isa] : nullptr; }

int32_t fs_isa_supported(int32_t isa) { return isa >= 0 && isa < FS_NUM_ISAS && supported[isa]; }

}  // extern "C"
