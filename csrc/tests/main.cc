// fullstride_tests [OP ...]: runs the tests of these ops, or all of them, in every variant this machine supports.
#include <string.h>

#include "test.h"

Test* Test::first = nullptr;
int num_failures = 0;

static bool wanted(const Test& test, int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (!strcmp(argv[i], test.op)) return true;
  return argc == 1;
}

int main(int argc, char** argv) {
  int num_passed = 0, num_failed = 0;
  for (int isa = 0; isa < FS_NUM_ISAS; ++isa) {
    if (!fs_isa_supported(isa)) {
      printf("not on this machine: %s\n", fs_isa_name(isa));
      continue;
    }
    for (const Test* test = Test::first; test; test = test->next) {
      if (!wanted(*test, argc, argv)) continue;
      num_failures = 0;
      test->run(isa);
      if (num_failures) printf("FAILED %s/%s in %s\n", test->op, test->name, fs_isa_name(isa));
      ++(num_failures ? num_failed : num_passed);
    }
  }
  printf("%d passed, %d failed\n", num_passed, num_failed);
  return num_failed || !num_passed;
}
