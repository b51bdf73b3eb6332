/* Calls everything in the C interface, in every variant this CPU can run, on odd sizes and unaligned memory.
 * Built with AddressSanitizer and UndefinedBehaviorSanitizer by test_cpu_sanitized.py: each buffer is an
 * allocation of its own and exactly as long as the interface asks for, so that one byte too many is found.
 * Results are held against plain loops over dequantised weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kt_ops_cpu.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const int types[] = {
    KT_CPU_F32,     KT_CPU_F16,    KT_CPU_BF16,    KT_CPU_Q4_0,    KT_CPU_Q4_1,   KT_CPU_Q5_0,
    KT_CPU_Q5_1,    KT_CPU_Q8_0,   KT_CPU_Q2_K,    KT_CPU_Q3_K,    KT_CPU_Q4_K,   KT_CPU_Q5_K,
    KT_CPU_Q6_K,    KT_CPU_IQ4_NL, KT_CPU_IQ4_XS,  KT_CPU_MXFP4,   KT_CPU_IQ1_S,  KT_CPU_IQ1_M,
    KT_CPU_IQ2_XXS, KT_CPU_IQ2_XS, KT_CPU_IQ2_S,   KT_CPU_IQ3_XXS, KT_CPU_IQ3_S};

static int failures, checks;

static void expect(int condition, const char *what, int type, int64_t a, int64_t b, int64_t c) {
  checks++;
  if (condition) return;
  failures++;
  printf("failed: %s, type %d, %lld %lld %lld\n", what, type, (long long)a, (long long)b, (long long)c);
}

static uint32_t state = 1;

static uint32_t next_random(void) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static void *exactly(int64_t bytes) {
  void *memory = malloc((size_t)bytes);
  if (memory == NULL) exit(2);
  return memory;
}

/* Where a block has float16 numbers, which random bytes could make infinite; -1 ends the list. */
static const int *halves_of(int type) {
  static const int at0[] = {0, -1}, at02[] = {0, 2, -1}, q2[] = {80, 82, -1}, q3[] = {108, -1}, q6[] = {208, -1},
                   none[] = {-1};
  switch (type) {
    case KT_CPU_Q4_1: case KT_CPU_Q5_1: case KT_CPU_Q4_K: case KT_CPU_Q5_K: return at02;
    case KT_CPU_Q2_K: return q2;
    case KT_CPU_Q3_K: return q3;
    case KT_CPU_Q6_K: return q6;
    case KT_CPU_F32: case KT_CPU_F16: case KT_CPU_BF16: case KT_CPU_MXFP4: case KT_CPU_IQ1_M: return none;
    default: return at0;
  }
}

/* A weight of random blocks at an odd address: the memory to free is *memory. */
static struct kt_cpu_matrix make(int type, int64_t rows, int64_t cols, uint8_t **memory) {
  const int64_t block = kt_cpu_block_bytes(type), row_bytes = cols / kt_cpu_block_values(type) * block;
  *memory = exactly(1 + rows * row_bytes);
  uint8_t *data = *memory + 1;
  for (int64_t i = 0; i < rows * row_bytes; i++) data[i] = (uint8_t)next_random();
  for (int64_t at = 0; at < rows * row_bytes; at += block) {
    for (const int *half = halves_of(type); *half >= 0; half++) {
      const uint16_t bits = (uint16_t)(0x2000 + next_random() % 0x400 + (next_random() % 2 << 15)); /* about 0.01 */
      memcpy(data + at + *half, &bits, 2);
    }
    if (type == KT_CPU_MXFP4) data[at] = (uint8_t)(118 + next_random() % 4);
    if (type == KT_CPU_IQ1_M) /* the nibbles of 0x2100 end its four scale words */
      for (int i = 0; i < 4; i++) data[at + 49 + 2 * i] = (uint8_t)((data[at + 49 + 2 * i] & 15) | (0x2100 >> 4 * i & 15) << 4);
    const float value = ((int)(next_random() % 2001) - 1000) / 1000.0f;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint16_t high = (uint16_t)(bits >> 16), half = (uint16_t)(0x3000 + next_random() % 0x800);
    if (type == KT_CPU_F32) memcpy(data + at, &bits, 4);
    if (type == KT_CPU_BF16) memcpy(data + at, &high, 2);
    if (type == KT_CPU_F16) memcpy(data + at, &half, 2);
  }
  return (struct kt_cpu_matrix){data, rows, cols, row_bytes, type};
}

/* Random activations of about 1, of two bytes or four each. */
static struct kt_cpu_rows make_rows(int dtype, int64_t tokens, int64_t cols, float *values) {
  const int64_t size = dtype == KT_CPU_FLOAT32 ? 4 : 2;
  uint8_t *data = exactly(tokens * cols * size);
  for (int64_t i = 0; i < tokens * cols; i++) {
    /* A sign, a power of two and three bits: the same number in all three dtypes. */
    const uint32_t sign = next_random() % 2, power = next_random() % 3, rest = next_random() % 8;
    values[i] = (sign ? -1.0f : 1.0f) * (1.0f + (float)rest / 8) / (float)(1 << power);
    uint32_t bits;
    memcpy(&bits, &values[i], 4);
    const uint16_t brain = (uint16_t)(bits >> 16);
    const uint16_t half = (uint16_t)(sign << 15 | (15 - power) << 10 | rest << 7);
    if (dtype == KT_CPU_FLOAT32) memcpy(data + 4 * i, &bits, 4);
    if (dtype == KT_CPU_BFLOAT16) memcpy(data + 2 * i, &brain, 2);
    if (dtype == KT_CPU_FLOAT16) memcpy(data + 2 * i, &half, 2);
  }
  return (struct kt_cpu_rows){data, cols * size, dtype};
}

/* y = x * w^T on dequantised weights. Returns the sum of all squared products: were signs random, it would be
 * about the squared norm of y, and unlike that it is never small by chance. */
static double plain_linear(const struct kt_cpu_matrix *w, const float *x, int64_t tokens, float *y) {
  float *values = exactly(w->rows * w->cols * 4);
  expect(kt_cpu_dequantize(w, values) == KT_CPU_OK, "dequantize", w->type, w->rows, w->cols, 0);
  double squares = 0;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t r = 0; r < w->rows; r++) {
      double sum = 0;
      for (int64_t k = 0; k < w->cols; k++) {
        const double product = (double)x[t * w->cols + k] * values[r * w->cols + k];
        sum += product;
        squares += product * product;
      }
      y[t * w->rows + r] = (float)sum;
    }
  free(values);
  return squares;
}

/* Whether two float32 results agree to `most` of the root of `squares`. */
static int near(const float *found, const float *wanted, int64_t count, double squares, double most) {
  double off = 0;
  for (int64_t i = 0; i < count; i++) off += ((double)found[i] - wanted[i]) * ((double)found[i] - wanted[i]);
  return isfinite(off) && off <= most * most * squares;
}

static void try_linear(int type, int64_t rows, int64_t cols, int64_t tokens, int dtype, int split) {
  uint8_t *memory;
  float *values = exactly(tokens * cols * 4), *wanted = exactly(tokens * rows * 4), *bias = exactly(rows * 4);
  struct kt_cpu_linear call = {.weight = make(type, rows, cols, &memory), .bias = bias, .tokens = tokens, .split = split};
  call.x = make_rows(dtype, tokens, cols, values);
  call.y = (struct kt_cpu_rows){exactly(tokens * rows * 4), rows * 4, KT_CPU_FLOAT32};
  for (int64_t r = 0; r < rows; r++) bias[r] = 0.5f;
  const double squares = plain_linear(&call.weight, values, tokens, wanted);
  for (int64_t i = 0; i < tokens * rows; i++) wanted[i] += 0.5f;
  expect(kt_cpu_linear(&call) == KT_CPU_OK, "linear", type, rows, cols, tokens);
  /* Activations are off by up to 1/254 of the largest of their block, or 1/64516. */
  expect(near(call.y.data, wanted, tokens * rows, squares, split ? 3e-4 : 0.02), "linear's result", type, rows, cols, tokens);
  free(memory), free(values), free(wanted), free(bias), free(call.x.data), free(call.y.data);
}

/* Experts of three types: every expert's weights are allocations of their own. */
static void try_experts(const int stored[3], int64_t hidden, int64_t inner, int64_t tokens, int dtype, int split) {
  enum { EXPERTS = 3, TOP_K = 2 };
  uint8_t *memory[3][EXPERTS];
  const void *data[3][EXPERTS];
  struct kt_cpu_matrix shapes[3], each[3][EXPERTS];
  for (int part = 0; part < 3; part++)
    for (int e = 0; e < EXPERTS; e++) {
      each[part][e] = make(stored[part], part == 2 ? hidden : inner, part == 2 ? inner : hidden, &memory[part][e]);
      data[part][e] = each[part][e].data;
      shapes[part] = each[part][e];
    }
  struct kt_cpu_experts_layer layer = {EXPERTS, shapes[0], shapes[1], shapes[2], data[0], data[1], data[2],
                                       NULL, NULL, NULL, KT_CPU_ACT_SILU, 0, 0};
  float *values = exactly(tokens * hidden * 4), *scores = exactly(tokens * TOP_K * 4);
  int64_t *ids = exactly(tokens * TOP_K * 8);
  for (int64_t i = 0; i < tokens * TOP_K; i++) {
    ids[i] = (int64_t)(next_random() % (EXPERTS + 1)) - 1;
    scores[i] = 0.25f + (float)(next_random() % 4) / 4;
  }
  ids[0] = 1;
  struct kt_cpu_experts call = {.layer = &layer, .ids = ids, .weights = scores, .tokens = tokens, .top_k = TOP_K, .split = split};
  call.x = make_rows(dtype, tokens, hidden, values);
  call.y = (struct kt_cpu_rows){exactly(tokens * hidden * 4), hidden * 4, KT_CPU_FLOAT32};
  float *wanted = calloc((size_t)(tokens * hidden), 4), *gate = exactly(inner * 4), *up = exactly(inner * 4),
        *out = exactly(hidden * 4);
  for (int64_t i = 0; i < tokens * TOP_K; i++) {
    if (ids[i] < 0) continue;
    plain_linear(&each[0][ids[i]], values + i / TOP_K * hidden, 1, gate);
    plain_linear(&each[1][ids[i]], values + i / TOP_K * hidden, 1, up);
    for (int64_t k = 0; k < inner; k++) gate[k] = gate[k] / (1 + expf(-gate[k])) * up[k];
    plain_linear(&each[2][ids[i]], gate, 1, out);
    for (int64_t k = 0; k < hidden; k++) wanted[i / TOP_K * hidden + k] += scores[i] * out[k];
  }
  double squares = 0;
  for (int64_t i = 0; i < tokens * hidden; i++) squares += (double)wanted[i] * wanted[i];
  expect(kt_cpu_experts(&call) == KT_CPU_OK, "experts", stored[0], hidden, inner, tokens);
  expect(near(call.y.data, wanted, tokens * hidden, squares, split ? 3e-4 : 0.05), "experts' result", stored[0], hidden, inner, tokens);
  ids[0] = EXPERTS;
  expect(kt_cpu_experts(&call) == KT_CPU_EXPERT_ID, "id out of range", stored[0], hidden, inner, tokens);
  for (int part = 0; part < 3; part++)
    for (int e = 0; e < EXPERTS; e++) free(memory[part][e]);
  free(values), free(scores), free(ids), free(call.x.data), free(call.y.data);
  free(wanted), free(gate), free(up), free(out);
}

static void try_pool(int threads, int nodes) {
  int32_t node_of_thread[8];
  for (int i = 0; i < threads; i++) node_of_thread[i] = i % nodes;
  const struct kt_cpu_placement placement = {threads, nodes, node_of_thread, NULL, NULL, 20};
  expect(kt_cpu_pool_set(&placement) == KT_CPU_OK, "pool", 0, threads, nodes, 0);
}

static void try_everything(int isa) {
  static const int64_t rows[] = {1, 17, 48}, tokens[] = {1, 2, 5, 26};
  for (int i = 0; i < COUNT(types); i++) {
    const int64_t block = kt_cpu_block_values(types[i]);
    const int64_t cols[] = {block == 1 ? 37 : block, block == 1 ? 300 : block == 32 ? 288 : 768};
    for (int c = 0; c < 2; c++)
      for (int r = 0; r < COUNT(rows); r++)
        for (int t = 0; t < COUNT(tokens); t++)
          if ((c + r + t) % 2 == isa % 2) /* half of them in each variant, the other half in the next */
            try_linear(types[i], rows[r], cols[c], tokens[t], (r + t) % 3, (r + t + i) % 2);
  }
  static const int mixed[][3] = {{KT_CPU_Q4_K, KT_CPU_Q8_0, KT_CPU_Q6_K},
                                 {KT_CPU_BF16, KT_CPU_IQ4_XS, KT_CPU_MXFP4},
                                 {KT_CPU_IQ2_XXS, KT_CPU_Q4_K, KT_CPU_Q5_0}};
  for (int i = 0; i < COUNT(mixed); i++)
    for (int t = 0; t < 3; t++)
      for (int split = 0; split < 2; split++) {
        static const int64_t some[] = {1, 3, 40};
        try_experts(mixed[i], 256, 256 * (1 + i % 2), some[t], (i + t) % 3, split);
      }
}

int main(void) {
  for (int i = 0; i < COUNT(types); i++) {
    const int type = types[i];
    const int64_t count = type == KT_CPU_IQ2_XXS ? 2048 : type == KT_CPU_IQ2_XS ? 4096 : type == KT_CPU_IQ2_S ? 8192
        : type == KT_CPU_IQ3_XXS ? 1024 : type == KT_CPU_IQ3_S ? 2048
        : type == KT_CPU_IQ1_S || type == KT_CPU_IQ1_M ? 16384 : 0;
    if (count == 0) continue;
    int8_t *values = exactly(count);
    for (int64_t v = 0; v < count; v++) values[v] = (int8_t)(next_random() % 3 - 1 + (type != KT_CPU_IQ1_S && type != KT_CPU_IQ1_M ? 8 : 0));
    expect(kt_cpu_codebook_set(type, values, count) == KT_CPU_OK, "codebook", type, count, 0, 0);
    free(values);
  }
  int variants = 0;
  for (int isa = 0; isa <= kt_cpu_isa_best(); isa++) {
    if (kt_cpu_isa_set(isa) != KT_CPU_OK) continue;
    try_pool(1 + isa % 3, 1);
    try_everything(isa);
    try_pool(4, 2);
    try_experts((const int[]){KT_CPU_Q4_K, KT_CPU_Q4_K, KT_CPU_Q6_K}, 512, 768, 9, KT_CPU_FLOAT32, 0);
    double read, gops;
    expect(kt_cpu_measure(1 << 20, 1, &read, &gops) == KT_CPU_OK && read > 0, "measure", 0, isa, 0, 0);
    kt_cpu_cancel(); /* nothing runs: nothing happens */
    printf("%s ", kt_cpu_isa_name(isa));
    variants++;
  }
  kt_cpu_scratch_free();
  expect(kt_cpu_scratch_bytes() == 0, "scratch", 0, 0, 0, 0);
  printf("%d variants, %d checks, %d failures\n", variants, checks, failures);
  return failures != 0;
}
