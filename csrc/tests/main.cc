// fullstride_tests [OP ...] [ISA ...]: runs the tests of these ops in these variants; by default all tests in every
// variant this machine supports. A variant that is named must be supported. Each test runs twice: as kernels are used,
// and cut into small parts over three threads, as the small sizes of tests never would be; with FS_STD_THREADS, which
// looks for races, only so.
#include <string.h>

#if defined(FS_STD_THREADS)
#include "threads.h"
#elif defined(_OPENMP)
#include <omp.h>
#endif

#include "test.h"

Test* Test::first = nullptr;
int num_failures = 0;

struct Arguments {
  std::vector<const char*> ops, isas;

  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) (is_isa(argv[i]) ? isas : ops).push_back(argv[i]);
  }
  static bool is_isa(const char* name) {
    for (int isa = 0; isa < FS_NUM_ISAS; ++isa)
      if (!strcmp(name, fs_isa_name(isa))) return true;
    return false;
  }
  static bool wanted(const std::vector<const char*>& names, const char* name) {
    for (const char* each : names)
      if (!strcmp(each, name)) return true;
    return names.empty();
  }
};

void set_num_threads([[maybe_unused]] int num_threads) {
#if defined(FS_STD_THREADS)
  fs_internal_set_threads(num_threads);
#elif defined(_OPENMP)
  omp_set_num_threads(num_threads);
#endif
}

static void cut_into_parts(bool finely) {
  static const int num_threads = fs_max_threads();
  fs_set_grain(finely ? 64 : 0);
  set_num_threads(finely ? 3 : num_threads);
}

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  int num_passed = 0, num_failed = 0;
  for (int isa = 0; isa < FS_NUM_ISAS; ++isa) {
    if (!arguments.wanted(arguments.isas, fs_isa_name(isa))) continue;
    if (!fs_isa_supported(isa)) {
      printf("not on this machine: %s\n", fs_isa_name(isa));
      num_failed += !arguments.isas.empty();
      continue;
    }
    for (const Test* test = Test::first; test; test = test->next) {
      if (!arguments.wanted(arguments.ops, test->op)) continue;
      num_failures = 0;
      for (const bool finely : {false, true}) {
#if defined(FS_STD_THREADS)
        if (!finely) continue;
#endif
        cut_into_parts(finely);
        test->run(isa);
      }
      if (num_failures) printf("FAILED %s/%s in %s\n", test->op, test->name, fs_isa_name(isa));
      ++(num_failures ? num_failed : num_passed);
    }
  }
  printf("%d passed, %d failed\n", num_passed, num_failed);
  return num_failed || !num_passed;
}
