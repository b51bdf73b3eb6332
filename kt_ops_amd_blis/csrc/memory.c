#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kt_blis.h"

/* Weights and scratch are large and read in long runs, so they are mapped on their own and huge pages
 * are asked for: with 4 KiB pages the page walks alone cost a few percent of the read bandwidth. */
enum { HUGE_PAGE = 2 << 20 };

char *kt_alloc(int64_t bytes) {
  if (bytes <= 0) return NULL;
  const size_t size = (size_t)kt_pad(bytes, 64);
  if (size < HUGE_PAGE) return aligned_alloc(64, size);
  void *address =
      mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return NULL;
  (void)madvise(address, size, MADV_HUGEPAGE); /* advice: without it everything still works */
  return address;
}

void kt_free(void *address, int64_t bytes) {
  if (!address) return;
  const size_t size = (size_t)kt_pad(bytes, 64);
  if (size < HUGE_PAGE) free(address);
  else (void)munmap(address, size);
}
