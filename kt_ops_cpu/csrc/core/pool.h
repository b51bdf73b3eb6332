/* The process's one pool of threads, and the scratch memory that its calls share. */
#ifndef KT_POOL_H
#define KT_POOL_H

#include <stdint.h>

#define KT_MAX_THREADS 1024
#define KT_MAX_NODES 16

/* One task of a phase. `next` is the task this thread will run after it, or -1 if that is not known yet:
 * its memory can be prefetched. `thread` is in [0, kt_pool_threads()). */
typedef void kt_task_fn(void *context, int node, int64_t task, int64_t next, int thread);

/* Enter before the first phase of a call and leave after the last: calls from several threads take
 * turns. Starts the threads if need be. Returns a kt_cpu_status; leave only after KT_CPU_OK. */
int kt_pool_enter(void);
void kt_pool_leave(void);

/* Threads and nodes of the pool; valid between enter and leave. */
int kt_pool_threads(void);
int kt_pool_nodes(void);

/* Run tasks[n] tasks for each node n, on that node's threads first. Returns when all have run, or with
 * KT_CPU_CANCELLED once the remaining ones have been dropped. */
int kt_pool_run(kt_task_fn *function, void *context, const int64_t *tasks);

/* `bytes` of 64-byte aligned memory, valid until leave; its content is arbitrary. Null: no memory. */
void *kt_pool_scratch(int64_t bytes);

#endif
