/* How it works. A phase is published by raising `epoch`. Threads claim its tasks with a
 * compare-and-swap on a ticket that carries the epoch, so a thread that wakes late can never claim a
 * task of a phase that has ended. The caller works too and then waits until as many tasks have finished
 * as there are: a worker that the system has not scheduled holds no task, so nobody waits for it. That
 * is why nothing collapses when threads equal cores, or exceed them.
 *
 * Idle workers look for work for a while, giving their time slice away, and then sleep. */
#include "core/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/affinity.h"
#include "kt_ops_cpu.h"

#if defined(__x86_64__)
#define kt_pause() __builtin_ia32_pause()
#else
#define kt_pause() ((void)0)
#endif

/* A ticket is epoch << 32 | tasks not yet claimed. The count is in it so that a late thread cannot pair
 * the ticket of one phase with the count of another. Padded: each node has its own line. */
struct ticket {
  _Atomic uint64_t word;
  char pad[56];
};

static struct {
  /* Settings; changed only under `turn` while no workers run. */
  int threads, nodes, spin_us;
  int node_of_thread[KT_MAX_THREADS];
  struct kt_cpu_set *cpus_of_node[KT_MAX_NODES];

  pthread_mutex_t turn; /* one call at a time */
  int started;
  pthread_t workers[KT_MAX_THREADS];
  void *scratch;
  int64_t scratch_bytes;

  /* The phase. Written before epoch is raised; read again by late threads, hence atomic. */
  _Atomic(kt_task_fn *) function;
  _Atomic(void *) context;
  _Atomic int64_t tasks[KT_MAX_NODES];
  struct ticket tickets[KT_MAX_NODES];
  _Atomic uint32_t epoch;
  _Atomic int64_t unfinished;
  atomic_int stopping, cancelled, running;

  pthread_mutex_t sleep_lock;
  pthread_cond_t wake;
  atomic_int sleepers;
} pool = {.threads = 1,
          .nodes = 1,
          .spin_us = 50,
          .turn = PTHREAD_MUTEX_INITIALIZER,
          .sleep_lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER};

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* The next task of `node` in phase `epoch`, or -1. */
static int64_t claim(int node, uint32_t epoch) {
  uint64_t word = atomic_load_explicit(&pool.tickets[node].word, memory_order_acquire);
  do {
    if ((uint32_t)(word >> 32) != epoch || (uint32_t)word == 0) return -1;
  } while (!atomic_compare_exchange_weak_explicit(&pool.tickets[node].word, &word, word - 1,
                                                  memory_order_acq_rel, memory_order_acquire));
  /* The claimed task keeps the phase from ending, so this count is its own. */
  return atomic_load_explicit(&pool.tasks[node], memory_order_relaxed) - (int64_t)(uint32_t)word;
}

/* Claim a task beyond the one at hand, but not one of the last that others could start with. */
static int64_t claim_ahead(int node, uint32_t epoch) {
  const uint64_t word = atomic_load_explicit(&pool.tickets[node].word, memory_order_relaxed);
  return (uint32_t)word > (uint32_t)pool.threads ? claim(node, epoch) : -1;
}

/* Work on phase `epoch` until none of its tasks is left: the own node's first, then anyone's. */
static void work(int thread, uint32_t epoch) {
  const int home = pool.node_of_thread[thread];
  for (int i = 0; i < pool.nodes; i++) {
    const int node = (home + i) % pool.nodes;
    int64_t task = claim(node, epoch);
    while (task >= 0) {
      kt_task_fn *function = atomic_load_explicit(&pool.function, memory_order_relaxed);
      void *context = atomic_load_explicit(&pool.context, memory_order_relaxed);
      const int64_t next = claim_ahead(node, epoch);
      if (!atomic_load_explicit(&pool.cancelled, memory_order_relaxed))
        function(context, node, task, next, thread);
      atomic_fetch_sub_explicit(&pool.unfinished, 1, memory_order_release);
      task = next >= 0 ? next : claim(node, epoch);
    }
  }
}

/* Wait for a phase other than `seen`; returns its epoch. */
static uint32_t wait_for_work(uint32_t seen) {
  const int64_t deadline = now_us() + pool.spin_us;
  do {
    for (int i = 0; i < 64; i++) {
      const uint32_t epoch = atomic_load_explicit(&pool.epoch, memory_order_acquire);
      if (epoch != seen || atomic_load_explicit(&pool.stopping, memory_order_relaxed)) return epoch;
      kt_pause();
    }
    sched_yield();
  } while (now_us() < deadline);
  pthread_mutex_lock(&pool.sleep_lock);
  atomic_fetch_add(&pool.sleepers, 1);
  while (atomic_load(&pool.epoch) == seen && !atomic_load(&pool.stopping))
    pthread_cond_wait(&pool.wake, &pool.sleep_lock);
  atomic_fetch_sub(&pool.sleepers, 1);
  pthread_mutex_unlock(&pool.sleep_lock);
  return atomic_load(&pool.epoch);
}

static void wake_sleepers(void) {
  if (atomic_load(&pool.sleepers) == 0) return;
  pthread_mutex_lock(&pool.sleep_lock);
  pthread_cond_broadcast(&pool.wake);
  pthread_mutex_unlock(&pool.sleep_lock);
}

static void *worker(void *argument) {
  const int thread = (int)(intptr_t)argument;
  uint32_t seen = 0; /* workers start before the first phase, whose epoch is 1 */
  kt_affinity_apply(pool.cpus_of_node[pool.node_of_thread[thread]]);
  while (!atomic_load_explicit(&pool.stopping, memory_order_relaxed)) {
    work(thread, seen);
    seen = wait_for_work(seen);
  }
  return NULL;
}

static void stop_workers(void) {
  atomic_store(&pool.stopping, 1);
  pthread_mutex_lock(&pool.sleep_lock);
  pthread_cond_broadcast(&pool.wake);
  pthread_mutex_unlock(&pool.sleep_lock);
  for (int i = 1; i < pool.started; i++) pthread_join(pool.workers[i], NULL);
  pool.started = 0;
  atomic_store(&pool.stopping, 0);
}

/* The child of a fork has the caller's thread alone: forget the workers, start new ones when needed. */
static void after_fork_in_child(void) {
  pthread_mutex_init(&pool.turn, NULL);
  pthread_mutex_init(&pool.sleep_lock, NULL);
  pthread_cond_init(&pool.wake, NULL);
  pool.started = 0;
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.stopping, 0);
  atomic_store(&pool.running, 0);
  atomic_store(&pool.cancelled, 0);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static int start_workers(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  atomic_store(&pool.epoch, 0);
  /* Signals are for the program's own threads. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int status = KT_CPU_OK;
  pool.started = 1;
  while (pool.started < pool.threads && status == KT_CPU_OK) {
    if (pthread_create(&pool.workers[pool.started], NULL, worker, (void *)(intptr_t)pool.started) == 0)
      pool.started++;
    else
      status = KT_CPU_THREADS;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (status != KT_CPU_OK) stop_workers();
  return status;
}

int kt_pool_enter(void) {
  pthread_mutex_lock(&pool.turn);
  if (pool.started == 0) {
    const int status = start_workers();
    if (status != KT_CPU_OK) {
      pthread_mutex_unlock(&pool.turn);
      return status;
    }
  }
  atomic_store(&pool.cancelled, 0);
  atomic_store(&pool.running, 1);
  return KT_CPU_OK;
}

void kt_pool_leave(void) {
  atomic_store(&pool.running, 0);
  pthread_mutex_unlock(&pool.turn);
}

int kt_pool_threads(void) { return pool.threads; }
int kt_pool_nodes(void) { return pool.nodes; }

int kt_pool_run(kt_task_fn *function, void *context, const int64_t *tasks) {
  int64_t total = 0;
  for (int n = 0; n < pool.nodes; n++) {
    if (tasks[n] < 0 || tasks[n] > UINT32_MAX) return KT_CPU_SHAPE;
    total += tasks[n];
  }
  if (total == 0) return KT_CPU_OK;
  if (pool.threads == 1 || total == 1) {
    for (int n = 0; n < pool.nodes; n++)
      for (int64_t task = 0; task < tasks[n] && !atomic_load(&pool.cancelled); task++)
        function(context, n, task, task + 1 < tasks[n] ? task + 1 : -1, 0);
    return atomic_load(&pool.cancelled) ? KT_CPU_CANCELLED : KT_CPU_OK;
  }
  const uint32_t epoch = atomic_load(&pool.epoch) + 1;
  atomic_store_explicit(&pool.function, function, memory_order_relaxed);
  atomic_store_explicit(&pool.context, context, memory_order_relaxed);
  atomic_store_explicit(&pool.unfinished, total, memory_order_relaxed);
  for (int n = 0; n < pool.nodes; n++) {
    atomic_store_explicit(&pool.tasks[n], tasks[n], memory_order_relaxed);
    atomic_store_explicit(&pool.tickets[n].word, (uint64_t)epoch << 32 | (uint64_t)tasks[n],
                          memory_order_release);
  }
  atomic_store(&pool.epoch, epoch);
  wake_sleepers();
  work(0, epoch);
  for (int i = 0; atomic_load_explicit(&pool.unfinished, memory_order_acquire) > 0; i++) {
    kt_pause();
    if (i % 64 == 63) sched_yield();
  }
  return atomic_load(&pool.cancelled) ? KT_CPU_CANCELLED : KT_CPU_OK;
}

void *kt_pool_scratch(int64_t bytes) {
  if (bytes > pool.scratch_bytes) {
    free(pool.scratch);
    pool.scratch_bytes = 0;
    const int64_t rounded = (bytes + 4095) / 4096 * 4096;
    pool.scratch = aligned_alloc(4096, (size_t)rounded);
    if (pool.scratch == NULL) return NULL;
    pool.scratch_bytes = rounded;
  }
  return pool.scratch;
}

static int placement_ok(const struct kt_cpu_placement *p) {
  if (p == NULL || p->threads < 1 || p->threads > KT_MAX_THREADS || p->nodes < 1 ||
      p->nodes > KT_MAX_NODES || p->nodes > p->threads || p->spin_us < 0)
    return 0;
  for (int i = 0; p->node_of_thread != NULL && i < p->threads; i++)
    if (p->node_of_thread[i] < 0 || p->node_of_thread[i] >= p->nodes) return 0;
  for (int n = 0; p->cpu_start != NULL && n < p->nodes; n++)
    if (p->cpu_start[n] < 0 || p->cpu_start[n + 1] < p->cpu_start[n]) return 0;
  return 1;
}

int kt_cpu_pool_set(const struct kt_cpu_placement *placement) {
  if (!placement_ok(placement)) return KT_CPU_ARGUMENT;
  pthread_mutex_lock(&pool.turn);
  if (pool.started != 0) stop_workers();
  pool.threads = placement->threads;
  pool.nodes = placement->nodes;
  pool.spin_us = placement->spin_us;
  for (int i = 0; i < pool.threads; i++)
    pool.node_of_thread[i] = placement->node_of_thread ? placement->node_of_thread[i] : i % pool.nodes;
  int status = KT_CPU_OK;
  for (int n = 0; n < KT_MAX_NODES; n++) {
    kt_affinity_free(pool.cpus_of_node[n]);
    pool.cpus_of_node[n] = NULL;
    if (n >= pool.nodes || placement->cpu_start == NULL || placement->cpus == NULL) continue;
    const int32_t first = placement->cpu_start[n], count = placement->cpu_start[n + 1] - first;
    if (count == 0) continue;
    pool.cpus_of_node[n] = kt_affinity_make(placement->cpus + first, count);
    if (pool.cpus_of_node[n] == NULL) status = KT_CPU_MEMORY;
  }
  pthread_mutex_unlock(&pool.turn);
  return status;
}

int kt_cpu_pool_threads(void) { return pool.threads; }

void kt_cpu_cancel(void) {
  if (atomic_load(&pool.running)) atomic_store(&pool.cancelled, 1);
}

int64_t kt_cpu_scratch_bytes(void) { return pool.scratch_bytes; }

void kt_cpu_scratch_free(void) {
  pthread_mutex_lock(&pool.turn);
  free(pool.scratch);
  pool.scratch = NULL;
  pool.scratch_bytes = 0;
  pthread_mutex_unlock(&pool.turn);
}
