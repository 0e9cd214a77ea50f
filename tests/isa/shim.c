// Preloaded into Python beside the bochscpu-python 0.4.0 wheel. Symbols defined here win over those of the wheel.
//
// 1. Two functions of newer C libraries that the wheel needs and Debian 12 lacks.
// 2. The CPU model: the wheel has many and always takes one.
// 3. Two faults of the embedded Bochs, repaired.
// 4. Counters in place of the wheel's hooks for every instruction and access, which nothing here uses.
//
// Offsets into Bochs' structures belong to that version of the wheel; setup.sh pins it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- 1. The C library

unsigned long long __isoc23_strtoull(const char *s, char **end, int base) { return strtoull(s, end, base); }

int __isoc23_sscanf(const char *s, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsscanf(s, format, args);
  va_end(args);
  return n;
}

static void die(const char *what, const char *name) {
  fprintf(stderr, "isa shim: %s %s\n", what, name);
  _exit(70);
}

// The wheel's own definition of a symbol; `inside` is an address of its code.
static void *wheel(void *inside, const char *symbol) {
  static void *handle;
  if (!handle) {
    Dl_info info;
    if (dladdr(inside, &info)) handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }
  void *found = handle ? dlsym(handle, symbol) : NULL;
  if (!found) die("the wheel has no", symbol);
  return found;
}
#define CALLER __builtin_return_address(0)

// --- 2. The CPU model

void *_Z23create_corei3_cnl_cpuidP8BX_CPU_C(void *cpu) {
  const char *model = getenv("BX_MODEL");
  if (!model) model = "sapphire_rapids";
  char name[128];
  snprintf(name, sizeof name, "_Z%zucreate_%s_cpuidP8BX_CPU_C", strlen(model) + strlen("create__cpuid"), model);
  void *(*create)(void *) = (void *(*)(void *))wheel(CALLER, name);
  if (create == _Z23create_corei3_cnl_cpuidP8BX_CPU_C) die("this model is taken:", model);
  return create(cpu);
}

struct cpuid_leaf {
  uint32_t eax, ebx, ecx, edx;
};
#define LEAF_7 "_ZNK17sapphire_rapids_t20get_std_cpuid_leaf_7EjP16cpuid_function_t"
// Bochs was built without AMX; amx.c supplies it.
void _ZNK17sapphire_rapids_t20get_std_cpuid_leaf_7EjP16cpuid_function_t(const void *self, uint32_t sub,
                                                                       struct cpuid_leaf *leaf) {
  static void (*real)(const void *, uint32_t, struct cpuid_leaf *);
  if (!real) real = (void (*)(const void *, uint32_t, struct cpuid_leaf *))wheel(CALLER, LEAF_7);
  real(self, sub, leaf);
  if (sub == 0 && getenv("BX_AMX")) leaf->edx |= 1u << 22 | 1u << 24; // AMX-BF16, AMX-TILE
}

// --- 3. Faults. Fields of bxInstruction_c: 0x14.. operands, 0x21 vector length in 16 bytes, 0x22 bit 3 "no memory",
// 0x23 mask register. vmm registers: 0x3c0 into bx_cpu, 64 bytes each.

static const char *(*name_of)(uint16_t);
#define OPCODES 3598

#define DISP8 "_Z23evex_displ8_compressionPK15bxInstruction_cjjjj"
// vdpbf16ps zmm, zmm, [mem + disp8] scales the displacement by 4 instead of the vector's length.
uint32_t _Z23evex_displ8_compressionPK15bxInstruction_cjjjj(const uint8_t *i, uint32_t op, uint32_t src, uint32_t type,
                                                            uint32_t w) {
  static uint32_t (*real)(const uint8_t *, uint32_t, uint32_t, uint32_t, uint32_t);
  static uint32_t dot;
  if (!real) {
    real = (uint32_t(*)(const uint8_t *, uint32_t, uint32_t, uint32_t, uint32_t))wheel(CALLER, DISP8);
    name_of = (const char *(*)(uint16_t))wheel(CALLER, "_Z18get_bx_opcode_namet");
    for (uint16_t k = 1; k < OPCODES && !dot; k++)
      if (name_of(k) && strstr(name_of(k), "EVEX_VDPBF16PS_")) dot = k;
  }
  uint32_t scale = real(i, op, src, type, w);
  return op == dot && scale == 4 && !(i[0x22] & 8) ? 16u * i[0x21] : scale;
}

static uint16_t to_bf16(uint32_t x) {
  uint32_t exponent = x & 0x7f800000u;
  if (!exponent) return (x >> 16) & 0x8000; // denormals are zero
  if (exponent == 0x7f800000u) return (x >> 16) | ((x & 0x7fffff) ? 0x40 : 0);
  return (x + 0x7fff + ((x >> 16) & 1)) >> 16;
}

// vcvtne2ps2bf16 takes the wrong source for its upper half.
void _ZN8BX_CPU_C30VCVTNE2PS2BF16_MASK_VphHpsWpsREP15bxInstruction_c(uint8_t *i) {
  static void (*next)(void *);
  static uint8_t *cpu;
  if (!next) {
    next = (void (*)(void *))wheel(CALLER, "_ZN8BX_CPU_C3NOPEP15bxInstruction_c");
    cpu = wheel(CALLER, "bx_cpu");
  }
  if (i[0x23]) die("not supported:", "vcvtne2ps2bf16 with a mask");
  uint32_t *high = (uint32_t *)(cpu + 0x3c0 + 64 * i[0x15]), *low = (uint32_t *)(cpu + 0x3c0 + 64 * i[0x16]);
  uint16_t out[32] = {0};
  int n = 4 * i[0x21];
  for (int k = 0; k < n; k++) {
    out[k] = to_bf16(low[k]);
    out[k + n] = to_bf16(high[k]);
  }
  memcpy(cpu + 0x3c0 + 64 * i[0x14], out, 64);
  next(i);
}

// --- 4. Counters. Only user mode counts: the few kernel instructions are the emulator's own (cpu.py).

static int in_kernel;
static uint64_t executed[OPCODES], loads, load_bytes, stores, store_bytes;

void bx_instr_before_execution(unsigned cpu, const uint8_t *i) {
  static uint32_t (*opcode)(const void *);
  if (!opcode) opcode = (uint32_t(*)(const void *))wheel(CALLER, "instr_bx_opcode");
  if (!in_kernel) executed[opcode(i)]++;
}

void bx_instr_after_execution(unsigned cpu, const void *i) {}

enum { READ = 0, WRITE = 1, READ_WRITE = 3 };
void bx_instr_lin_access(unsigned cpu, uint64_t linear, uint64_t physical, unsigned bytes, unsigned type, unsigned rw) {
  if (in_kernel) return;
  if (rw == READ || rw == READ_WRITE) loads++, load_bytes += bytes;
  if (rw == WRITE || rw == READ_WRITE) stores++, store_bytes += bytes;
}

void bx_instr_phy_access(unsigned cpu, uint64_t physical, unsigned bytes, unsigned type, unsigned rw) {}

void bx_instr_exception(unsigned cpu, unsigned vector, unsigned error) { in_kernel = 1; }

void bx_instr_far_branch(unsigned cpu, unsigned what, uint16_t from_cs, uint64_t from, uint16_t to_cs, uint64_t to) {
  in_kernel = (to_cs & 3) != 3;
}

// For cpu.py: the count and name of an opcode, or NULL past the last.
const char *counted(unsigned op, uint64_t *count) {
  if (op >= OPCODES) return NULL;
  *count = executed[op];
  const char *name = name_of ? name_of(op) : NULL;
  return name ? name : "";
}

void accesses(uint64_t out[4]) {
  out[0] = loads, out[1] = load_bytes, out[2] = stores, out[3] = store_bytes;
}
