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
LDLIBS  := $(addprefix -l,jansson pcre2-8 utf8proc) -lm

# Kernel files choose their instructions by suffix; no other file may use them.
ISA_avx2   := -mavx2 -mfma -mf16c -O3
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -O3
ISA_neon   := -O3 -march=armv8.2-a+dotprod+fp16

ALL_SRC := $(sort $(wildcard src/*/*.c))
LIB_SRC := $(filter-out src/cli/%,$(ALL_SRC))
ifeq ($(ARCH),aarch64)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c,$(LIB_SRC))
else
LIB_SRC := $(filter-out %_neon.c,$(LIB_SRC))
endif
CLI_SRC := $(sort $(wildcard src/cli/*.c))
obj      = $(patsubst %.c,$(B)/%.o,$(1))
LIB_OBJ := $(call obj,$(LIB_SRC))
CLI_OBJ := $(call obj,$(CLI_SRC))

.PHONY: all
all: $(B)/cambium $(B)/libcambium.a $(B)/libcambium.so

$(B)/%_avx2.o:   CFLAGS += $(ISA_avx2)
$(B)/%_avx512.o: CFLAGS += $(ISA_avx512)
$(B)/%_neon.o:   CFLAGS += $(ISA_neon)
$(B)/src/kernels/%.o: CFLAGS += -fno-trapping-math

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

# Tests: each tests/unit/NAME.c and tests/kernel/NAME.c is a cmocka program of its own.
TEST_SRC := $(sort $(wildcard tests/unit/*.c) $(wildcard tests/kernel/*.c) $(wildcard tests/op/*.c))
TEST_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(TEST_SRC))
$(B)/tests/%.o: CFLAGS += -Itests
$(B)/tests/%: $(B)/tests/%.o $(B)/libcambium.a
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

.PHONY: tests
tests: $(TEST_BIN)

.PHONY: clean
clean:
	rm -rf build

-include $(shell find build -name '*.d' 2>/dev/null)
