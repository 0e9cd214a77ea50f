// AMX-TILE and AMX-BF16 for a CPU core that has neither: executes the instruction at `rip`.
//
// Source: Intel SDM volume 2, "LDTILECFG" to "TDPBF16PS". What the manual leaves open (denormals, the order of
// additions, NaN) is as measured on a Sapphire Rapids by tests/amx-trap/tests/silicon.rs.
#include <math.h>
#include <stdint.h>
#include <string.h>

static uint8_t config[64], tile[8][16][64];

enum { LOADS, STORES, PRODUCTS, ZEROS, CONFIGS, KINDS };
uint64_t amx_counts[KINDS];

static unsigned rows(unsigned t) { return config[48 + t]; }
static unsigned row_bytes(unsigned t) { return config[16 + 2 * t] | config[17 + 2 * t] << 8; }

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static int is_nan(float x) { return (bits_of(x) & 0x7fffffff) > 0x7f800000; }

static float flushed(float x) { return bits_of(x) & 0x7f800000 ? x : float_of(bits_of(x) & 0x80000000); }

static float bf16_at(const uint8_t *p) { return flushed(float_of((uint32_t)p[0] << 16 | (uint32_t)p[1] << 24)); }

// A result without denormals; the first NaN among the operands is kept, made quiet.
static float kept(float value, float x, float y, float z) {
  if (!is_nan(value)) return flushed(value);
  float nan = is_nan(x) ? x : is_nan(y) ? y : z;
  return float_of(is_nan(nan) ? bits_of(nan) | 1 << 22 : 0xffc00000);
}

// Even and odd products are summed apart; each multiply-add rounds once; the two sums and C meet at the end.
static void product(unsigned c, unsigned a, unsigned b) {
  for (unsigned i = 0; i < rows(c); i++) {
    for (unsigned j = 0; j < row_bytes(c); j += 4) {
      float sum[2] = {0, 0}, old;
      for (unsigned k = 0; k < rows(b); k++)
        for (unsigned half = 0; half < 2; half++) {
          float x = bf16_at(&tile[a][i][4 * k + 2 * half]), y = bf16_at(&tile[b][k][j + 2 * half]);
          sum[half] = kept(fmaf(x, y, sum[half]), x, y, sum[half]);
        }
      sum[0] = kept(sum[0] + sum[1], sum[0], sum[1], 0);
      memcpy(&old, &tile[c][i][j], 4);
      old = flushed(old);
      old = kept(old + sum[0], old, sum[0], 0);
      memcpy(&tile[c][i][j], &old, 4);
    }
  }
}

static int configure(const uint8_t *from) {
  if (from[0] > 1) return 0;
  for (unsigned i = 2; i < 16; i++)
    if (from[i]) return 0;
  for (unsigned t = 0; t < 16; t++) {
    unsigned bytes = from[16 + 2 * t] | from[17 + 2 * t] << 8;
    if (bytes > (t < 8 ? 64 : 0) || from[48 + t] > (t < 8 ? 16 : 0)) return 0;
  }
  memset(config, 0, sizeof config);
  if (from[0]) memcpy(config, from, 64);
  memset(tile, 0, sizeof tile);
  return 1;
}

struct operand {
  uint64_t address, stride;
  unsigned length; // of the instruction so far
};

// Decodes ModRM, SIB and displacement of a memory operand; `code` is the instruction.
static struct operand memory_operand(const uint8_t *code, uint64_t rip, const uint64_t *registers) {
  unsigned x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8, mode = code[4] >> 6, rm = code[4] & 7;
  struct operand o = {0, 0, 5};
  int32_t far = 0;
  if (rm == 4) {
    uint8_t sib = code[o.length++];
    unsigned index = (sib >> 3 & 7) | x;
    if (index != 4) o.stride = registers[index] << (sib >> 6);
    if ((sib & 7) == 5 && mode == 0) mode = 2;
    else o.address = registers[(sib & 7) | b];
  } else if (rm == 5 && mode == 0) {
    mode = 2;
    o.address = rip + o.length + 4;
  } else {
    o.address = registers[rm | b];
  }
  if (mode == 1) o.address += (int8_t)code[o.length++];
  if (mode == 2) {
    memcpy(&far, code + o.length, 4);
    o.address += far;
    o.length += 4;
  }
  return o;
}

static int matching(unsigned c, unsigned a, unsigned b) {
  return c != a && a != b && c != b && b < 8 && rows(c) && rows(c) == rows(a) && row_bytes(a) == 4 * rows(b) &&
         row_bytes(b) == row_bytes(c);
}

// Returns the instruction's length, or 0 if it isn't one of these or would fault. `memory` is address 0; registers
// are numbered as in encodings (rax, rcx, rdx, rbx, rsp, ...).
int amx_step(uint8_t *memory, uint64_t rip, const uint64_t *registers) {
  const uint8_t *code = memory + rip;
  // Three-byte VEX, map 0F38, W0, 128 bits.
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || code[2] & 0x84) return 0;
  unsigned prefix = code[2] & 3, op = code[3], in_register = code[4] >> 6 == 3;
  unsigned reg = code[4] >> 3 & 7, rm = code[4] & 7, second = ~(code[2] >> 3) & 15;
  struct operand o = {0, 0, 5};
  if (op != 0x49 && op != 0x4b && op != 0x5c) return 0;
  if (!in_register) o = memory_operand(code, rip, registers);
  uint8_t *at = memory + o.address;
  switch (op << 8 | prefix << 4 | in_register) {
  case 0x4900: // ldtilecfg
    if (!configure(at)) return 0;
    amx_counts[CONFIGS]++;
    break;
  case 0x4910: // sttilecfg
    memcpy(at, config, 64);
    amx_counts[CONFIGS]++;
    break;
  case 0x4901: // tilerelease
    memset(config, 0, sizeof config);
    memset(tile, 0, sizeof tile);
    amx_counts[CONFIGS]++;
    break;
  case 0x4931: // tilezero
    if (!config[0]) return 0;
    memset(tile[reg], 0, sizeof tile[reg]);
    amx_counts[ZEROS]++;
    break;
  case 0x4b30: // tileloadd
  case 0x4b10: // tileloaddt1
    if (!config[0] || !rows(reg)) return 0;
    memset(tile[reg], 0, sizeof tile[reg]);
    for (unsigned r = 0; r < rows(reg); r++) memcpy(tile[reg][r], at + o.stride * r, row_bytes(reg));
    amx_counts[LOADS]++;
    break;
  case 0x4b20: // tilestored
    if (!config[0] || !rows(reg)) return 0;
    for (unsigned r = 0; r < rows(reg); r++) memcpy(at + o.stride * r, tile[reg][r], row_bytes(reg));
    amx_counts[STORES]++;
    break;
  case 0x5c21: // tdpbf16ps
    if (!config[0] || !matching(reg, rm, second)) return 0;
    product(reg, rm, second);
    amx_counts[PRODUCTS]++;
    break;
  default:
    return 0;
  }
  return (int)o.length;
}
