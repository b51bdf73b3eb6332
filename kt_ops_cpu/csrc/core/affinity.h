/* Keeping a thread to a set of CPUs, where the system can. */
#ifndef KT_AFFINITY_H
#define KT_AFFINITY_H

#include <stdint.h>

struct kt_cpu_set;

/* Null if there is no memory, or nothing to be done on this system. */
struct kt_cpu_set *kt_affinity_make(const int32_t *cpus, int32_t count);
void kt_affinity_free(struct kt_cpu_set *set);
/* Bind the calling thread; null and a refusal by the system are ignored, for speed alone depends on it. */
void kt_affinity_apply(const struct kt_cpu_set *set);

#endif
