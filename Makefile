# Everything goes through .venv, made on first use. A stamp file says what is done, so a second call does no set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(wildcard csrc/*.h csrc/*.cc csrc/[!t]*/*.h csrc/[!t]*/*.cc)
CMAKE_TESTS = $(BIN)/cmake -S . -G "Unix Makefiles" -DFULLSTRIDE_TESTS=ON -DFULLSTRIDE_REQUIRE_COMPILER=ON -DCMAKE_RULE_MESSAGES=OFF
CTEST = OMP_WAIT_POLICY=passive $(BIN)/ctest --output-on-failure -j $(JOBS)
JOBS := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
export HF_HUB_OFFLINE := 1
MAKEFLAGS += --no-print-directory

.NOTPARALLEL:
.PHONY: help setup demo test check test-python test-native test-sanitize test-threads test-arm64 test-avx512 test-amx bench bench-check performance clean
help:           ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/installed.stamp  ## .venv with torch, the development tools and this package

# torch first and under the constraints: left to itself pip would take the newest one and its GPU packages.
$(VENV)/torch.stamp: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	touch $@

# timm without torchvision: that is built for torch with CUDA, and beside a CPU-only torch transformers' import fails with it.
$(VENV)/installed.stamp: $(VENV)/torch.stamp $(NATIVE)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q -c constraints.txt --no-deps timm
	touch $@

demo: RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)
demo: setup     ## train a network on real digits, compare it with stock PyTorch, show both in a report
	$(BIN)/fullstride data mnist
	$(BIN)/fullstride train mlp-mnist --run $(RUN) --no-report
	$(BIN)/fullstride compare mlp-mnist --seconds 60 --to $(RUN)/compare --json $(RUN)/compare.json
	@printf 'report: ' && $(BIN)/fullstride report $(RUN)

test: setup check test-native test-sanitize test-threads test-python  ## every check and test

check: setup    ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

# Threads of a test that wait must not hold the core that another test's could use.
test-python: setup  ## pytest
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

test-native: setup  ## the C++ test program, every variant this machine has
	$(CMAKE_TESTS) -B build/tests -DFULLSTRIDE_PREBUILT="$$($(BIN)/python -c 'from fullstride import _native; print(_native.library()._name)')" >/dev/null
	$(BIN)/cmake --build build/tests -j $(JOBS)
	$(CTEST) --test-dir build/tests

test-sanitize: setup  ## the same under AddressSanitizer and UndefinedBehaviorSanitizer
	$(CMAKE_TESTS) -B build/sanitize -DFULLSTRIDE_SANITIZE=ON -DFULLSTRIDE_ISAS="$$($(BIN)/python -c 'from fullstride import _native; print(*(n for n, able in _native.isas().items() if able), sep=";")')" >/dev/null
	$(BIN)/cmake --build build/sanitize -j $(JOBS)
	$(CTEST) --test-dir build/sanitize

# Without OpenMP, whose barriers ThreadSanitizer does not know; one variant, as all share out work alike.
test-threads: setup  ## the same under ThreadSanitizer, with every loop cut into parts
	$(CMAKE_TESTS) -B build/threads -DFULLSTRIDE_SANITIZE_THREADS=ON -DFULLSTRIDE_ISAS=portable >/dev/null
	$(BIN)/cmake --build build/threads -j $(JOBS)
	$(CTEST) --test-dir build/threads

test-arm64: setup  ## the same for arm64 (Debian: g++-aarch64-linux-gnu, qemu-user)
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || { echo "needs a cross compiler and qemu-user: apt-get install g++-aarch64-linux-gnu qemu-user"; exit 1; }
	$(CMAKE_TESTS) -B build/arm64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-cpu;max;-L;/usr/aarch64-linux-gnu" >/dev/null
	$(BIN)/cmake --build build/arm64 -j $(JOBS)
	$(CTEST) --test-dir build/arm64

test-avx512: setup  ## the same on an emulated CPU with AVX-512 and BF16 (Debian hosts; takes many minutes)
	PATH="$(CURDIR)/$(BIN):$$PATH" csrc/tests/emulate_avx512.sh

test-amx: test-native  ## the ops that multiply, in Python, with the CPU's matrix unit emulated (needs AVX512-BF16)
	LD_PRELOAD="$(CURDIR)/build/tests/csrc/tests/libemulate_amx.so" FULLSTRIDE_ISA=amx OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/ops/test_gemm.py tests/ops/test_linear.py tests/ops/test_attention.py tests/ops/test_linear_cross_entropy.py

bench: setup    ## take the results of this CPU anew, into benchmarks/results (takes long; SUITES="kernels ..." for some)
	$(BIN)/python -m benchmarks.take $(SUITES)

bench-check: setup  ## name kernels and steps that became slower than the results of this kind of CPU (ONLY="adam mlp" for some)
	$(BIN)/python -m benchmarks.check $(if $(ONLY),--only $(ONLY))

performance:    ## write docs/performance.md and the tables of README.md from the results, name those that are stale
	$(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m benchmarks.render

clean:          ## what make made
	rm -rf $(VENV) build dist
