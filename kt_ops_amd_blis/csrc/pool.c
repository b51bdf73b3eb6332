#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "call.h"

/* How long a thread that waits stays awake: offering its core now and then to whoever wants it (torch's
 * threads between two layers), then asleep in the kernel. Waking takes about as long as reading a layer's
 * weights for one token, so a decoding model must find the workers awake; one that stopped must not find
 * them burning. */
enum { YIELD_EVERY_MICROSECONDS = 50, SLEEP_AFTER_MICROSECONDS = 1000, PAUSES = 32 };

struct kt_pool {
  int32_t threads;
  pthread_t *handles;
  pthread_mutex_t lock; /* held for one forward pass */

  /* The job. It is written only while `open` is 0 and no worker is inside. */
  kt_task task;
  void *context;
  int64_t count;
  const kt_blis *blis;
  kt_thread_setting caller;

  _Alignas(64) atomic_uint open; /* 1: tasks may be taken */
  atomic_bool stop;
  _Alignas(64) atomic_uint posts; /* counts jobs; what sleeping workers wait on */
  atomic_int sleepers;
  _Alignas(64) atomic_int inside; /* workers between entering and leaving a job */
  _Alignas(64) atomic_llong next;

  void *scratch;
  int64_t scratch_bytes;
};

typedef struct {
  kt_pool *pool;
  int32_t worker;
} start_argument;

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static int64_t microseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

typedef struct {
  int64_t since, yielded;
} wait_clock;

static wait_clock start_waiting(void) {
  const int64_t now = microseconds();
  return (wait_clock){now, now};
}

/* One step of waiting; false once it is time to sleep. */
static bool stay_awake(wait_clock *clock) {
  for (int i = 0; i < PAUSES; i++) relax();
  const int64_t now = microseconds();
  if (now - clock->yielded > YIELD_EVERY_MICROSECONDS) {
    sched_yield();
    clock->yielded = microseconds();
  }
  return now - clock->since < SLEEP_AFTER_MICROSECONDS;
}

static void futex_wait(atomic_uint *word, unsigned expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, KT_MAX_THREADS, NULL, NULL, 0);
}

static void take_tasks(kt_pool *pool, int32_t worker) {
  const int64_t count = pool->count;
  int64_t task;
  while ((task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < count)
    pool->task(pool->context, task, worker);
}

/* Enter the job if it is still open. `inside` is raised before `open` is read and the caller closes
 * before it reads `inside`, so a worker is either seen by the caller or sees the job closed. */
static void join_job(kt_pool *pool, int32_t worker) {
  atomic_fetch_add(&pool->inside, 1);
  if (atomic_load(&pool->open)) {
    if (pool->blis) kt_threads_one(pool->blis);
    take_tasks(pool, worker);
  }
  atomic_fetch_sub(&pool->inside, 1);
}

static void *work(void *argument) {
  start_argument *start = argument;
  kt_pool *pool = start->pool;
  const int32_t worker = start->worker;
  free(start);
  unsigned seen = 0;
  for (;;) {
    unsigned posts = atomic_load_explicit(&pool->posts, memory_order_acquire);
    wait_clock clock = start_waiting();
    while (posts == seen && stay_awake(&clock))
      posts = atomic_load_explicit(&pool->posts, memory_order_acquire);
    while (posts == seen) {
      atomic_fetch_add(&pool->sleepers, 1);
      futex_wait(&pool->posts, seen);
      atomic_fetch_sub(&pool->sleepers, 1);
      posts = atomic_load_explicit(&pool->posts, memory_order_acquire);
    }
    seen = posts;
    if (atomic_load(&pool->stop)) return NULL;
    join_job(pool, worker);
  }
}

static void post(kt_pool *pool) {
  atomic_fetch_add(&pool->posts, 1);
  if (atomic_load(&pool->sleepers) > 0) futex_wake_all(&pool->posts);
}

void kt_pool_run(kt_pool *pool, kt_task task, void *context, int64_t count) {
  if (pool->threads == 1 || count <= 1) {
    for (int64_t i = 0; i < count; i++) task(context, i, 0);
    return;
  }
  pool->task = task;
  pool->context = context;
  pool->count = count;
  atomic_store(&pool->next, 0);
  atomic_store(&pool->open, 1);
  post(pool);
  take_tasks(pool, 0);
  atomic_store(&pool->open, 0);
  /* What is left is at most one task per worker. */
  wait_clock clock = start_waiting();
  while (atomic_load(&pool->inside) != 0) (void)stay_awake(&clock);
}

void kt_pool_acquire(kt_pool *pool, const kt_blis *blis) {
  pthread_mutex_lock(&pool->lock);
  pool->blis = blis;
  if (blis) pool->caller = kt_threads_one(blis);
}

void kt_pool_release(kt_pool *pool) {
  if (pool->blis) kt_threads_restore(pool->blis, pool->caller);
  pthread_mutex_unlock(&pool->lock);
}

static void stop_workers(kt_pool *pool, int32_t started) {
  atomic_store(&pool->stop, true);
  atomic_fetch_add(&pool->posts, 1);
  futex_wake_all(&pool->posts);
  for (int32_t i = 1; i < started; i++) pthread_join(pool->handles[i], NULL);
}

static void destroy(kt_pool *pool) {
  kt_free(pool->scratch, pool->scratch_bytes);
  pthread_mutex_destroy(&pool->lock);
  free(pool->handles);
  free(pool);
}

kt_status kt_pool_new(int32_t threads, kt_pool **out) {
  if (threads < 1 || threads > KT_MAX_THREADS) return KT_BAD_ARGUMENT;
  kt_pool *pool = aligned_alloc(64, (size_t)kt_pad((int64_t)sizeof *pool, 64));
  if (!pool) return KT_NO_MEMORY;
  *pool = (kt_pool){.threads = threads};
  pool->handles = calloc((size_t)threads, sizeof *pool->handles);
  if (!pool->handles) {
    free(pool);
    return KT_NO_MEMORY;
  }
  pthread_mutex_init(&pool->lock, NULL);
  for (int32_t i = 1; i < threads; i++) {
    start_argument *start = malloc(sizeof *start);
    if (start) *start = (start_argument){pool, i};
    if (!start || pthread_create(&pool->handles[i], NULL, work, start) != 0) {
      const kt_status status = start ? KT_NO_THREADS : KT_NO_MEMORY;
      free(start);
      stop_workers(pool, i);
      destroy(pool);
      return status;
    }
  }
  *out = pool;
  return KT_OK;
}

void kt_pool_free(kt_pool *pool) {
  if (!pool) return;
  stop_workers(pool, pool->threads);
  destroy(pool);
}

int32_t kt_pool_threads(const kt_pool *pool) { return pool->threads; }

int64_t kt_pool_scratch_bytes(const kt_pool *pool) { return pool->scratch_bytes; }

void *kt_pool_scratch(kt_pool *pool, int64_t bytes) {
  if (bytes > pool->scratch_bytes) {
    void *grown = kt_alloc(bytes);
    if (!grown) return NULL;
    kt_free(pool->scratch, pool->scratch_bytes);
    pool->scratch = grown;
    pool->scratch_bytes = bytes;
  }
  return pool->scratch;
}
