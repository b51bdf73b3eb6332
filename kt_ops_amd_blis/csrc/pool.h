/* A small pool of threads for tasks numbered 0..n-1, and the scratch memory they work in. */
#ifndef KT_POOL_H
#define KT_POOL_H

#include "kt_blis.h"

typedef void (*kt_task)(void *context, int64_t task, int32_t worker);

/* Take the pool for one forward pass; other callers wait. The calling thread computes as worker 0. While
 * the pool is held, BLIS runs single-threaded on every thread of it, the caller included, so that its
 * threads and ours never multiply; kt_pool_release restores the caller's own setting. */
void kt_pool_acquire(kt_pool *pool, const kt_blis *blis);
void kt_pool_release(kt_pool *pool);

/* Run task(context, i, worker) for every i in [0, count) and return when all are done. */
void kt_pool_run(kt_pool *pool, kt_task task, void *context, int64_t count);

/* At least `bytes` of 64-byte aligned memory, contents undefined, valid until the next call of it on
 * this pool; NULL if there is none. It grows to the largest request and is kept. */
void *kt_pool_scratch(kt_pool *pool, int64_t bytes);

#endif
