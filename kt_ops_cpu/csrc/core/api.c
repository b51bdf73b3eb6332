/* The parts of the interface that are neither kernels nor settings. */
#include <stddef.h>

#include "core/check.h"
#include "rows/row-formats.h"

int kt_cpu_abi_version(void) { return 3; }

const char *kt_cpu_status_text(int status) {
  switch (status) {
    case KT_CPU_OK: return "done";
    case KT_CPU_ARGUMENT: return "a pointer, a count or a stride is not valid";
    case KT_CPU_TYPE: return "a weight or activation type is not known here";
    case KT_CPU_SHAPE: return "a size is out of range or not a whole number of blocks";
    case KT_CPU_EXPERT_ID: return "an expert id is out of range";
    case KT_CPU_MEMORY: return "scratch memory could not be allocated";
    case KT_CPU_VARIANT: return "this CPU cannot run that variant";
    case KT_CPU_THREADS: return "a worker thread could not be started";
    case KT_CPU_CANCELLED: return "cancelled";
    case KT_CPU_CODEBOOK: return "the codebook of an IQ type has not been set";
    default: return "unknown status";
  }
}

static void dequantize_block(const struct kt_type *type, kt_row_fn *unpack, const uint8_t *block, float *out) {
  int8_t q[KT_STEP];
  float scale[KT_STEP / 16], min[KT_STEP / 16] = {0};
  const int group = kt_family_group(type->family);
  unpack(block, q, scale, min);
  for (int k = 0; k < type->block_values; k++)
    out[k] = scale[k / group] * (float)q[k] + min[k / group];
}

static float plain_value(int type, const uint8_t *p) {
  if (type == KT_CPU_F32) return kt_bits_float(kt_load_u32(p));
  return type == KT_CPU_F16 ? kt_half_float(kt_load_u16(p)) : kt_bf16_float(kt_load_u16(p));
}

int kt_cpu_dequantize(const struct kt_cpu_matrix *matrix, float *out) {
  struct kt_weight weight;
  if (matrix == NULL) return KT_CPU_ARGUMENT;
  const int status = kt_check_matrix(matrix, 1, &weight);
  if (status != KT_CPU_OK) return status;
  if (out == NULL && weight.rows > 0) return KT_CPU_ARGUMENT;
  kt_row_fn *unpack = kt_row_find(weight.number);
  for (int64_t r = 0; r < weight.rows; r++) {
    const uint8_t *block = (const uint8_t *)matrix->data + r * weight.row_bytes;
    for (int64_t k = 0; k < weight.cols; k += weight.type->block_values) {
      if (unpack != NULL)
        dequantize_block(weight.type, unpack, block, out);
      else
        *out = plain_value(weight.number, block);
      block += weight.type->block_bytes;
      out += weight.type->block_values;
    }
  }
  return KT_CPU_OK;
}
