/* The allocator of the native kernels. It counts the bytes in use, so that a test can measure what a call really
 * allocates, and it can be told to fail, so that a test can show that a failed call changes nothing. */
#include <stdlib.h>

#include "gradcent.h"

typedef union {
    size_t bytes;
    max_align_t alignment;
} header_t;

static size_t in_use, peak;
static int64_t fail_after = -1;

void *gradcent_allocate(size_t bytes) {
    if (fail_after >= 0 && fail_after-- == 0) return NULL;
    header_t *block = calloc(1, sizeof *block + bytes);
    if (!block) return NULL;
    block->bytes = bytes;
    const size_t total = __atomic_add_fetch(&in_use, bytes, __ATOMIC_RELAXED);
    size_t seen = __atomic_load_n(&peak, __ATOMIC_RELAXED);
    while (total > seen && !__atomic_compare_exchange_n(&peak, &seen, total, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return block + 1;
}

void gradcent_free(void *pointer) {
    if (!pointer) return;
    header_t *block = (header_t *)pointer - 1;
    __atomic_sub_fetch(&in_use, block->bytes, __ATOMIC_RELAXED);
    free(block);
}

size_t gradcent_peak_bytes(int reset) {
    const size_t bytes = __atomic_load_n(&peak, __ATOMIC_RELAXED);
    if (reset) __atomic_store_n(&peak, __atomic_load_n(&in_use, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    return bytes;
}

void gradcent_fail_allocation(int64_t after) { fail_after = after; }
