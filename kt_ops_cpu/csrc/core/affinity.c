#define _GNU_SOURCE
#include "core/affinity.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct kt_cpu_set {
#if defined(__linux__)
  size_t bytes;
  cpu_set_t *set;
#else
  int unused;
#endif
};

struct kt_cpu_set *kt_affinity_make(const int32_t *cpus, int32_t count) {
  struct kt_cpu_set *made = calloc(1, sizeof *made);
#if defined(__linux__)
  int32_t most = 0;
  for (int32_t i = 0; i < count; i++) most = cpus[i] > most ? cpus[i] : most;
  if (made == NULL) return NULL;
  made->bytes = CPU_ALLOC_SIZE(most + 1);
  made->set = CPU_ALLOC(most + 1);
  if (made->set == NULL) {
    free(made);
    return NULL;
  }
  CPU_ZERO_S(made->bytes, made->set);
  for (int32_t i = 0; i < count; i++)
    if (cpus[i] >= 0) CPU_SET_S(cpus[i], made->bytes, made->set);
#else
  (void)cpus, (void)count;
#endif
  return made;
}

void kt_affinity_free(struct kt_cpu_set *set) {
  if (set == NULL) return;
#if defined(__linux__)
  CPU_FREE(set->set);
#endif
  free(set);
}

void kt_affinity_apply(const struct kt_cpu_set *set) {
#if defined(__linux__)
  if (set != NULL) (void)pthread_setaffinity_np(pthread_self(), set->bytes, set->set);
#else
  (void)set;
#endif
}
