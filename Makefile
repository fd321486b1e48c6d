# Cambium. `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
# An object folder per flavour: build/release, build/asan, build/ubsan, build/tsan, build/fuzz, build/aarch64.
# Local choices go to config.mk.
-include config.mk

FLAVOUR ?= release
B       := build/$(FLAVOUR)
CC      ?= cc
PKGS    := jansson libpcre2-8 libutf8proc
ARCH    := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))

STD      := -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter -Werror=implicit
COMMON   := $(STD) $(WARN) -g -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -pthread -MMD -MP
OPT      := -O2
ifeq ($(FLAVOUR),asan)
OPT := -O1 -DCB_DEBUG -fsanitize=address -fno-omit-frame-pointer
else ifeq ($(FLAVOUR),ubsan)
OPT := -O1 -DCB_DEBUG -fsanitize=undefined -fno-sanitize-recover=all
else ifeq ($(FLAVOUR),tsan)
OPT := -O1 -fsanitize=thread
else ifeq ($(FLAVOUR),fuzz)
CC  := clang
OPT := -O1 -DCB_DEBUG -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all
else ifeq ($(FLAVOUR),aarch64)
CC  := aarch64-linux-gnu-gcc
ARCH := aarch64
endif
CFLAGS  += $(COMMON) $(OPT)
LDFLAGS += -pthread $(filter -fsanitize=%,$(OPT))
LDLIBS  := $(addprefix -l,jansson pcre2-8 utf8proc) -lm -ldl

# Kernel files choose their instructions by suffix; no other file may use them.
# Instrumented builds keep their own level: -O3 there takes many minutes a file.
KERNEL_OPT := $(if $(filter asan ubsan tsan,$(FLAVOUR)),,-O3)
ISA_avx2   := -mavx2 -mfma -mf16c $(KERNEL_OPT)
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c $(KERNEL_OPT)
ISA_neon   := $(KERNEL_OPT) -march=armv8.2-a+dotprod+fp16
# The SIMD files are many inlined shapes: instrumented they take minutes to compile, and tests/kernel puts guard pages right
# behind every buffer instead.
ifneq ($(filter asan ubsan tsan,$(FLAVOUR)),)
ISA_avx2   += -fno-sanitize=all
ISA_avx512 += -fno-sanitize=all
ISA_neon   += -fno-sanitize=all
endif

# GPU kernels: one fatbin a .cu file, embedded. Without nvcc (or with `make NVCC=`) the program is built for the CPU alone.
# CUDA_ARCHS: machine code for these, and PTX of the first for what comes after.
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_ARCHS ?= 80 89 90a
HAVE_CUDA := $(if $(and $(NVCC),$(filter release asan ubsan tsan,$(FLAVOUR)),$(filter x86_64,$(ARCH))),1)
CUDA_SRC  := $(if $(HAVE_CUDA),$(sort $(wildcard src/cuda/*.cu)))

ALL_SRC := $(sort $(wildcard src/*/*.c))
ifeq ($(HAVE_CUDA),)
ALL_SRC := $(filter-out src/cuda/%,$(ALL_SRC))
endif
LIB_SRC := $(filter-out src/cli/%,$(ALL_SRC))
ifeq ($(ARCH),aarch64)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c,$(LIB_SRC))
else
LIB_SRC := $(filter-out %_neon.c,$(LIB_SRC))
endif
ifeq ($(FLAVOUR),fuzz) # parsers need no kernels, and their build is what takes long
LIB_SRC := $(filter-out src/kernels/% src/cpu/%,$(LIB_SRC))
endif
CLI_SRC := $(sort $(wildcard src/cli/*.c))
obj      = $(patsubst %.c,$(B)/%.o,$(1))
LIB_OBJ := $(call obj,$(LIB_SRC)) $(CUDA_SRC:src/cuda/%.cu=$(B)/src/cuda/%.fatbin.o)
CLI_OBJ := $(call obj,$(CLI_SRC))

.PHONY: all
all: $(if $(CLI_SRC),$(B)/cambium) $(B)/libcambium.a $(B)/libcambium.so

$(B)/%_avx2.o:   CFLAGS += $(ISA_avx2)
$(B)/%_avx512.o: CFLAGS += $(ISA_avx512)
$(B)/%_neon.o:   CFLAGS += $(ISA_neon)
$(B)/src/kernels/%.o: CFLAGS += -fno-trapping-math
# Scalar fma is one instruction everywhere it matters; without -mfma gcc calls libm, which is right but slow.
$(B)/src/kernels/%_c.o: CFLAGS += $(KERNEL_OPT)

# The commit is known to one file only, so that nothing else is compiled anew for it.
$(B)/src/cli/system.o: CFLAGS += -DCB_COMMIT='"$(shell git -C $(CURDIR) rev-parse --short HEAD 2>/dev/null || echo unknown)"'

$(B)/src/backends/%.o $(B)/src/cli/system.o: CFLAGS += $(if $(HAVE_CUDA),-DCB_HAVE_CUDA)
$(B)/src/cuda/%.o: CFLAGS += -isystem $(dir $(NVCC))../include

build/cuda/%.fatbin: src/cuda/%.cu
	@mkdir -p $(@D)
	@echo "  nvcc    $<"
	@$(NVCC) -std=c++17 -O3 -fmad=false -Isrc -Iinclude -fatbin -MD -MF $(@:.fatbin=.d) -MT $@ -o $@ $< \
	    $(foreach a,$(CUDA_ARCHS),-gencode=arch=compute_$(a),code=sm_$(a)) \
	    -gencode=arch=compute_$(firstword $(CUDA_ARCHS)),code=compute_$(firstword $(CUDA_ARCHS))
$(B)/src/cuda/%.fatbin.o: build/cuda/%.fatbin
	@mkdir -p $(@D)
	@printf '.section .rodata\n.balign 64\n.globl cb_fatbin_$*\n.hidden cb_fatbin_$*\ncb_fatbin_$*:\n.incbin "$<"\n.section .note.GNU-stack,"",%%progbits\n' | \
	    $(CC) -c -x assembler -o $@ -
.PRECIOUS: build/cuda/%.fatbin

$(B)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc      $<"
	@$(CC) $(CFLAGS) -c -o $@ $<

$(B)/libcambium.a: $(LIB_OBJ)
	@rm -f $@ && ar rcs $@ $^
$(B)/libcambium.so: $(LIB_OBJ)
	@$(CC) -shared -Wl,-soname,libcambium.so.1 $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(B)/cambium: $(CLI_OBJ) $(B)/libcambium.a
	@echo "  link    $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -ledit

# Tests: each tests/{unit,kernel,op,parity}/NAME.c is a cmocka program of its own; each tests/fuzz/NAME.c is linked with
# replay.c, which runs its corpus. tests/run.sh runs them.
TEST_SRC := $(sort $(wildcard $(foreach d,unit kernel op parity,tests/$(d)/*.c)))
TEST_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(TEST_SRC))
FUZZ_SRC := $(filter-out tests/fuzz/replay.c,$(sort $(wildcard tests/fuzz/*.c)))
FUZZ_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(FUZZ_SRC))
$(B)/tests/%.o: CFLAGS += -Itests
ifeq ($(FLAVOUR),fuzz)
$(FUZZ_BIN): $(B)/tests/fuzz/%: $(B)/tests/fuzz/%.o $(B)/libcambium.a
	@$(CC) -pthread -fsanitize=fuzzer,address,undefined -o $@ $^ $(LDLIBS)
else
$(FUZZ_BIN): $(B)/tests/fuzz/%: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/replay.o $(B)/libcambium.a
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
endif
$(B)/tests/fuzz/settings: $(B)/src/cli/settings.o
$(filter $(B)/tests/parity/%,$(TEST_BIN)): $(patsubst %,$(B)/src/cli/parity_%.o,ref run self)
$(TEST_BIN): $(B)/tests/%: $(B)/tests/%.o $(B)/libcambium.a
	@$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -lcmocka
.PRECIOUS: $(B)/%.o

# An NVIDIA driver without a GPU, for tests of src/cuda's host code (tests/cuda/fake_cuda.h).
FAKE_CUDA := $(if $(HAVE_CUDA),$(B)/tests/cuda/libcuda.so.1)
$(B)/tests/cuda/%.o: CFLAGS += -isystem $(dir $(NVCC))../include
$(B)/tests/cuda/libcuda.so.1: $(B)/tests/cuda/fake_cuda.o $(B)/tests/cuda/fake_kernels.o
	@$(CC) -shared -Wl,-soname,libcuda.so.1 $(LDFLAGS) -o $@ $^

# The same driver with kernels that compute: src/cuda/*.cu as C++, a fiber for each GPU thread (tests/cuda/emulate/emulate.h). What is
# written for nvcc alone is not warned about. Not in instrumented builds: they do not know fibers.
EMULATED := $(if $(filter release,$(FLAVOUR)),$(if $(HAVE_CUDA),$(B)/tests/cuda/emulated/libcuda.so.1))
EMU_CU   := $(CUDA_SRC:src/cuda/%.cu=%)
EMU_CXX   = $(CXX) -std=c++17 -O2 -fPIC -mavx2 -mfma -ffp-contract=off -w -Wno-psabi -Itests/cuda/emulate -Isrc -Iinclude -I. -isystem $(dir $(NVCC))../include
EMU_DEPS := $(wildcard tests/cuda/emulate/* tests/cuda/emulate/cuda/* tests/cuda/*.h src/cuda/*.cuh src/cuda/abi.h src/cuda/gemm.h) src/kernels/num.h src/plan/opkind.h
$(B)/tests/cuda/emulated/%.o: src/cuda/%.cu $(EMU_DEPS)
	@mkdir -p $(@D)
	@echo "  c++     $<"
	@(echo "namespace emu_$* {"; sed -E 's/extern __shared__ (__align__\([0-9]+\) )?([a-z0-9_]+) ([A-Za-z]+)\[\]/\2 *\3 = (\2 *)emu_dynamic/' $<; echo "}") | \
	    $(EMU_CXX) -include tests/cuda/emulate/emulate.h -x c++ -c -o $@ -
$(B)/tests/cuda/emulated/%.o: tests/cuda/emulate/%.cpp $(EMU_DEPS)
	@mkdir -p $(@D)
	@$(EMU_CXX) -c -o $@ $<
$(B)/tests/cuda/emulated/libcuda.so.1: $(patsubst %,$(B)/tests/cuda/emulated/%.o,$(EMU_CU) emulate kernels) $(B)/tests/cuda/fake_cuda.o
	@$(CXX) -shared -Wl,-soname,libcuda.so.1 -o $@ $^

# Speed of kernels and of models: docs/performance.md.
.PHONY: kbench mbench resident synth
kbench: $(B)/kbench
mbench: $(B)/mbench
resident: $(B)/resident
synth: $(B)/synth
$(B)/kbench $(B)/mbench $(B)/resident $(B)/synth: $(B)/%: $(B)/tools/%.o $(B)/libcambium.a
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# The many-rows kernels, checked and timed on an NVIDIA GPU: build/cuda/gemm_bench [check] [time] [part of a kernel's name]...
.PHONY: cuda-bench
cuda-bench: build/cuda/gemm_bench
build/cuda/gemm_bench: tests/cuda/gemm_bench.cu $(wildcard tests/cuda/*.cuh tests/cuda/*.h src/cuda/gemm* src/cuda/*.cuh src/cuda/*.h) $(B)/src/kernels/linear_c.o $(B)/src/io/dtype.o
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -fmad=false -Isrc -Iinclude -Itests/cuda -gencode=arch=compute_90a,code=sm_90a -o $@ $(filter %.cu %.o,$(filter-out src/cuda/%,$^)) -ldl -lm

# Sub-makes share the caller's -j; two jobs when there is none.
J = $(if $(findstring -j,$(MAKEFLAGS)),,-j2)

.PHONY: tests test check-asan check-ubsan check-tsan check-valgrind check-aarch64 check-cuda fuzz fuzz-bins fuzz-run
tests: $(TEST_BIN) $(FUZZ_BIN) $(B)/synth $(FAKE_CUDA) $(EMULATED)
fuzz-bins: $(FUZZ_BIN)

# Everything that needs no GPU and no download: the programs of this machine, then NEON under emulation where the tools are.
test:
	@tools/deps.sh build test arm64
	@$(MAKE) --no-print-directory $(J) all tests
	@tests/all.sh $(FLAVOUR) "$(MAKE) --no-print-directory $(J)"
check-asan check-ubsan check-tsan: check-%:
	@tools/deps.sh build test
	@$(MAKE) --no-print-directory $(J) FLAVOUR=$* all tests
	@tests/run.sh $*
check-valgrind:
	@$(MAKE) --no-print-directory $(J) tests
	@CB_TEST_AS=valgrind CB_TEST_WRAP="valgrind -q --error-exitcode=99" CB_TEST_TIMEOUT=600 tests/run.sh release unit
# On a machine with an NVIDIA GPU: whole models and every kernel by hash, then the small ones under compute-sanitizer. Without a GPU
# each test is skipped by name.
check-cuda:
	@tools/deps.sh build test
	@$(MAKE) --no-print-directory $(J) all tests
	@tests/cuda.sh
check-aarch64:
	@$(MAKE) --no-print-directory $(J) FLAVOUR=aarch64 tests
	@tests/run.sh aarch64

# libFuzzer programs; `make fuzz-run T=safetensors SECONDS=600` runs one. What it finds is kept in build/fuzz/found.
T ?=
SECONDS ?= 60
fuzz:
	@$(MAKE) --no-print-directory $(J) FLAVOUR=fuzz fuzz-bins
fuzz-run: fuzz
	@mkdir -p build/fuzz/corpus/$(T) build/fuzz/found/$(T)
	build/fuzz/tests/fuzz/$(T) -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/found/$(T)/ build/fuzz/corpus/$(T) $(wildcard tests/fuzz/corpus/$(T))

.PHONY: lint fmt compdb install deps
lint: $(B)/libcambium.so $(B)/libcambium.a
	@tools/lint.sh $(B)/libcambium.so
fmt:
	clang-format -i $(ALL_SRC) $(wildcard src/*/*.h include/*.h)
compdb:
	@tools/compdb.sh
deps:
	@tools/deps.sh build test arm64

# On a fresh machine: packages, build, a small real model (from the network the first time), one streamed answer.
.PHONY: demo help
demo:
	@tools/deps.sh build
	@[ -f models/smollm2/model.safetensors ] || tools/deps.sh fetch
	@$(MAKE) --no-print-directory $(J) $(B)/cambium
	@CAMBIUM=$(B)/cambium tools/demo.sh
help:
	@echo "make            release build: build/release/cambium, libcambium.a, libcambium.so"
	@echo "make demo       install packages, build, fetch SmolLM2 135M, answer one prompt"
	@echo "make test       all tests that need no GPU and no download"
	@echo "make check-asan check-ubsan check-tsan check-valgrind check-aarch64 check-cuda    the tests, instrumented, emulated or on a GPU"
	@echo "make fuzz-run T=NAME SECONDS=60    one fuzz target"
	@echo "make cuda-bench build/cuda/gemm_bench: checks and times the many-rows GPU kernels"
	@echo "make lint fmt compdb install clean"

VERSION := $(shell sed -n 's/.*cb_version(void).*"\([0-9.]*\)".*/\1/p' src/run/*.c)
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 755 $(B)/cambium $(DESTDIR)$(PREFIX)/bin/cambium
	install -m 644 include/cambium.h $(DESTDIR)$(PREFIX)/include/cambium.h
	install -m 644 $(B)/libcambium.a $(DESTDIR)$(LIBDIR)/libcambium.a
	install -m 755 $(B)/libcambium.so $(DESTDIR)$(LIBDIR)/libcambium.so.$(VERSION)
	ln -sf libcambium.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libcambium.so.1
	ln -sf libcambium.so.1 $(DESTDIR)$(LIBDIR)/libcambium.so
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$${prefix}/include' '' 'Name: cambium' \
	    'Description: Runs open-weight language models with one defined arithmetic' 'Version: $(VERSION)' \
	    'Requires.private: $(PKGS)' 'Libs: -L$${libdir} -lcambium' 'Libs.private: -lm -pthread' 'Cflags: -I$${includedir}' \
	    >$(DESTDIR)$(LIBDIR)/pkgconfig/cambium.pc

.PHONY: clean
clean:
	rm -rf build

-include $(shell find build -name '*.d' 2>/dev/null)
