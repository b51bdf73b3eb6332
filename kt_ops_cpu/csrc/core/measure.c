/* The two limits that every kernel is held against: reading memory, and multiplying bytes. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/kernels.h"
#include "core/pool.h"
#include "kt_ops_cpu.h"

#define LEAST_BYTES ((int64_t)1 << 20)
#define MOST_BYTES ((int64_t)1 << 40)
#define ROUNDS 4000000 /* of kt_peak_fn; some 10 ms */

struct measure {
  const struct kt_kernels *kernels;
  uint8_t *memory;
  int64_t part; /* bytes per thread */
  _Atomic int64_t keep; /* so that nothing is computed in vain */
};

static void fill_task(void *context, int node, int64_t task, int64_t next, int thread) {
  struct measure *m = context;
  (void)node, (void)next, (void)thread;
  memset(m->memory + task * m->part, 1, (size_t)m->part);
}

static void read_task(void *context, int node, int64_t task, int64_t next, int thread) {
  struct measure *m = context;
  (void)node, (void)next, (void)thread;
  m->keep += m->kernels->read(m->memory + task * m->part, m->part);
}

static void peak_task(void *context, int node, int64_t task, int64_t next, int thread) {
  struct measure *m = context;
  (void)node, (void)next, (void)thread, (void)task;
  m->keep += m->kernels->peak(ROUNDS);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int kt_cpu_measure(int64_t bytes, int32_t runs, double *read_gb_per_s, double *int8_gops) {
  if (read_gb_per_s == NULL || int8_gops == NULL || bytes < LEAST_BYTES || bytes > MOST_BYTES || runs < 1)
    return KT_CPU_ARGUMENT;
  struct measure m = {.kernels = kt_kernels_current()};
  int status = kt_pool_enter();
  if (status != KT_CPU_OK) return status;
  const int threads = kt_pool_threads();
  m.part = bytes / threads / 4096 * 4096;
  m.memory = aligned_alloc(4096, (size_t)(m.part * threads + 4096));
  int64_t tasks[KT_MAX_NODES] = {0};
  tasks[0] = threads;
  *read_gb_per_s = *int8_gops = 0;
  status = m.memory == NULL ? KT_CPU_MEMORY : kt_pool_run(fill_task, &m, tasks);
  for (int run = 0; run < runs && status == KT_CPU_OK; run++) {
    double start = now();
    status = kt_pool_run(read_task, &m, tasks);
    const double read = (double)(m.part * threads) / (now() - start) / 1e9;
    *read_gb_per_s = read > *read_gb_per_s ? read : *read_gb_per_s;
    if (status != KT_CPU_OK || m.kernels->peak == NULL) continue;
    start = now();
    status = kt_pool_run(peak_task, &m, tasks);
    const double gops = (double)m.kernels->peak_operations * ROUNDS * threads / (now() - start) / 1e9;
    *int8_gops = gops > *int8_gops ? gops : *int8_gops;
  }
  free(m.memory);
  kt_pool_leave();
  return status;
}
