/* Threads. torch has a thread pool already, and a second one would compete with it for the cores, so the work runs
 * in torch's: through `torch_parallel_for` and `torch_get_num_threads`, two C functions of torch's stable ABI
 * (torch 2.10 and later). native.py looks them up by name. Without them everything runs on the calling thread. */
#include "gradcent.h"

static parallel_for_t parallel_for;
static get_num_threads_t get_num_threads;

void gradcent_use_threads(parallel_for_t for_function, get_num_threads_t count_function) {
    parallel_for = for_function;
    get_num_threads = count_function;
}

int gradcent_thread_count(void) {
    uint32_t count = 1;
    if (!parallel_for || !get_num_threads || get_num_threads(&count)) return 1;
    return count > 1 ? (int)count : 1;
}

typedef struct {
    void (*body)(void *, int);
    void *context;
} region_t;

static void run_parts(int64_t begin, int64_t end, void *context) {
    const region_t *region = context;
    for (int64_t part = begin; part < end; part++) region->body(region->context, (int)part);
}

void gradcent_parallel(int parts, void (*body)(void *, int), void *context) {
    region_t region = {body, context};
    /* The body takes its items from a shared queue, so running it once more after a failure only finishes the rest. */
    if (parts > 1 && parallel_for && !parallel_for(0, parts, 1, run_parts, &region)) return;
    run_parts(0, parts, &region);
}
