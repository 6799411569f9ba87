/* Distributing numbered items over torch's threads. Each thread has a range of items, the same range in every call
 * with the same tensors: what it wrote in the last step, or read in the last stage, may still be in its caches, and
 * the cores of one machine need not share any. Idle threads steal work from the other ranges. */
#include "gradcent.h"

#define MAX_THREADS 256

typedef struct {
    _Alignas(64) int64_t taken;
    int64_t begin, end;
} range_t;

typedef struct {
    void (*item)(void *, int64_t);
    void *context;
    int count, backwards;
    range_t ranges[MAX_THREADS];
} queue_t;

static void work(void *data, int part) {
    queue_t *queue = data;
    for (int other = 0; other < queue->count; other++) {
        range_t *range = &queue->ranges[(part + other) % queue->count];
        for (;;) {
            const int64_t k = __atomic_fetch_add(&range->taken, 1, __ATOMIC_RELAXED);
            if (k >= range->end - range->begin) break;
            queue->item(queue->context, queue->backwards ? range->end - 1 - k : range->begin + k);
        }
    }
}

void gradcent_distribute(int64_t count, int threads, int backwards, int64_t (*border)(void *, int, int),
                         void (*item)(void *, int64_t), void *context) {
    queue_t queue; /* most of it is never used */
    queue.item = item;
    queue.context = context;
    queue.backwards = backwards;
    if (threads > count) threads = (int)count;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads < 1) return;
    queue.count = threads;
    int64_t at = 0;
    for (int part = 0; part < threads; part++) {
        queue.ranges[part] = (range_t){.begin = at};
        at = part == threads - 1 ? count : border ? border(context, part + 1, threads) : count * (part + 1) / threads;
        queue.ranges[part].end = at;
    }
    gradcent_parallel(threads, work, &queue);
}
