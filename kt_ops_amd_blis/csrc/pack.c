/* Weights: any plain float type to int8 with one scale per output channel (or per group of inputs),
 * reordered into BLIS's panels. */
#include <stdatomic.h>
#include <string.h>

#include "call.h"
#include "isa.h"
#include "pool.h"
#include "product.h"

kt_status kt_layout_init(const kt_blis *blis, int64_t n, int64_t k, int64_t width, int64_t group,
                         kt_layout *layout) {
  const int64_t limit = INT64_C(1) << 24; /* far above any layer, far below any overflow here */
  if (n < 1 || k < 1 || n > limit || k > limit) return KT_BAD_ARGUMENT;
  if (width < KT_PANEL || width % KT_PANEL != 0) return KT_BAD_ARGUMENT;
  if (group < 0 || (group != 0 && group % 32 != 0)) return KT_BAD_ARGUMENT;
  kt_layout l = {.n = kt_pad(n, KT_PANEL), .k = kt_pad(k, KT_PANEL)};
  l.width = kt_min(width, l.n);
  l.chunks = kt_ceil_div(l.n, l.width);
  l.group = group == 0 ? l.k : kt_min(group, l.k);
  l.groups = kt_ceil_div(l.k, l.group);
  l.fused = l.groups > 1 && l.k % l.group == 0 && blis->group_gemm;
  const kt_status status =
      l.fused ? kt_group_reorder_size(blis, l.k, l.width, l.group, &l.slice_bytes)
              : kt_reorder_b_size(blis, 'r', 't', l.group, l.width, &l.slice_bytes);
  if (status != KT_OK) return status;
  l.slice_bytes = kt_pad(l.slice_bytes, 64);
  l.chunk_bytes = (l.fused ? 1 : l.groups) * l.slice_bytes;
  l.panel_bytes = l.chunks * l.chunk_bytes;
  l.scale_count = l.chunks * l.groups * l.width;
  *layout = l;
  return KT_OK;
}

typedef struct {
  const kt_blis *blis;
  const kt_rows *rows;
  const kt_layout *layout;
  int64_t n, k, row_bytes;
  int32_t dtype;
  const kt_pack_job *jobs;
  const int64_t *starts; /* first task of each job */
  int64_t job_count;
  char *scratch;
  int64_t worker_bytes;
  atomic_int not_finite;
} pack_context;

static void pack_chunk(void *argument, int64_t task, int32_t worker) {
  pack_context *p = argument;
  const kt_layout *l = p->layout;
  int64_t j = 0;
  while (j + 1 < p->job_count && p->starts[j + 1] <= task) j++;
  const kt_pack_job *job = &p->jobs[j];
  const int64_t chunk = job->first + task - p->starts[j];
  const int64_t width = kt_chunk_width(l, chunk);
  const int64_t half = job->b ? width / 2 : width;
  const int64_t pitch = job->b ? l->width / 2 : l->width; /* source rows a full chunk takes */

  int8_t *quantized = (int8_t *)(p->scratch + worker * p->worker_bytes);
  float *row_scales = (float *)(quantized + kt_pad(l->width * l->k, 64));
  float *scales = job->scales + chunk * l->groups * l->width;
  for (int64_t i = 0; i < width; i++) {
    const int64_t within = i < half ? i : i - half;
    const int64_t row = (chunk - job->first) * pitch + within; /* in the source given */
    int8_t *q = quantized + i * l->k;
    if (chunk * pitch + within < p->n && row < job->rows) {
      const char *source = (const char *)(i < half ? job->a : job->b) + row * p->row_bytes;
      if (p->rows->quantize_row(source, p->dtype, p->k, l->k, l->group, q, row_scales))
        atomic_store_explicit(&p->not_finite, 1, memory_order_relaxed);
    } else { /* padding */
      memset(q, 0, (size_t)l->k);
      memset(row_scales, 0, (size_t)l->groups * sizeof *row_scales);
    }
    for (int64_t g = 0; g < l->groups; g++) scales[g * width + i] = row_scales[g];
  }
  int8_t *out = job->panels + chunk * l->chunk_bytes;
  if (l->fused) {
    kt_group_reorder(p->blis, l->k, width, l->group, quantized, out);
    return;
  }
  for (int64_t g = 0; g < l->groups; g++)
    ((kt_reorder_fn)p->blis->reorder)('r', 't', 'B', quantized + g * l->group,
                                      out + g * l->slice_bytes, kt_slice_depth(l, g), width, l->k,
                                      NULL);
}

kt_status kt_pack(const kt_blis *blis, kt_pool *pool, const kt_layout *layout, int64_t n, int64_t k,
                  int32_t dtype, int64_t row_bytes, const kt_pack_job *jobs, int64_t count) {
  const int64_t size = dtype == KT_F32 ? 4 : 2;
  if (n < 1 || k < 1 || kt_pad(k, KT_PANEL) != layout->k || row_bytes < k * size)
    return KT_BAD_ARGUMENT;
  for (int64_t j = 0; j < count; j++)
    if (!jobs[j].a || !jobs[j].panels || !jobs[j].scales || jobs[j].first < 0 || jobs[j].count < 0 ||
        jobs[j].first + jobs[j].count > layout->chunks)
      return KT_BAD_ARGUMENT;
  pack_context p = {.blis = blis,
                    .rows = kt_rows_current(),
                    .layout = layout,
                    .n = n,
                    .k = k,
                    .row_bytes = row_bytes,
                    .dtype = dtype,
                    .jobs = jobs,
                    .job_count = count};
  p.worker_bytes = kt_pad(kt_pad(layout->width * layout->k, 64) + layout->groups * 4, 64);
  kt_pool_acquire(pool, blis);
  kt_status status = KT_NO_MEMORY;
  const int64_t starts_bytes = kt_pad((count + 1) * (int64_t)sizeof(int64_t), 64);
  char *scratch =
      kt_pool_scratch(pool, starts_bytes + p.worker_bytes * kt_pool_threads(pool));
  if (scratch) {
    int64_t *starts = (int64_t *)scratch, tasks = 0;
    for (int64_t j = 0; j < count; j++) {
      starts[j] = tasks;
      tasks += jobs[j].count;
    }
    p.starts = starts;
    p.scratch = scratch + starts_bytes;
    kt_pool_run(pool, pack_chunk, &p, tasks);
    status = atomic_load(&p.not_finite) ? KT_NOT_FINITE : KT_OK;
  }
  kt_pool_release(pool);
  return status;
}

kt_status kt_quantize_rows(const void *x, int64_t rows, int64_t k, int64_t padded, int64_t x_stride,
                           int32_t dtype, int64_t group, int8_t *q, float *scales) {
  if (!x || !q || !scales || rows < 0 || k < 1 || padded < k || padded % 16 != 0 || group < 1 ||
      (group < padded && group % 16 != 0))
    return KT_BAD_ARGUMENT;
  const kt_rows *variant = kt_rows_current();
  const int64_t size = dtype == KT_F32 ? 4 : 2, groups = kt_ceil_div(padded, group);
  for (int64_t r = 0; r < rows; r++)
    (void)variant->quantize_row((const char *)x + r * x_stride * size, dtype, k, padded, group,
                                q + r * padded, scales + r * groups);
  return KT_OK;
}
