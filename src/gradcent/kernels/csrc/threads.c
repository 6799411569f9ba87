/* The instruction set and the threads. Torch has an OpenMP pool already; a second one would fight with
 * it for the cores, so the entry point of the library that torch loaded is handed in at run time. */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include "gradcent.h"

static const engine_t *chosen;

static int runs_here(const engine_t *engine) {
#if defined(__x86_64__)
    if (engine == &gradcent_engine_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx2");
    /* Every processor with AVX2 has F16C, which older compilers cannot be asked about. */
    if (engine == &gradcent_engine_avx2) return __builtin_cpu_supports("avx2");
#endif
    return engine == &gradcent_engine_baseline;
}

int gradcent_choose_engine(const char *name) {
    const engine_t *all[] = {
#if defined(__x86_64__)
        &gradcent_engine_avx512, &gradcent_engine_avx2,
#endif
        &gradcent_engine_baseline,
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if ((!name || !strcmp(name, all[k]->name)) && runs_here(all[k])) {
            chosen = all[k];
            return 0;
        }
    return -1;
}

const engine_t *gradcent_engine(void) {
    if (!chosen) gradcent_choose_engine(NULL);
    return chosen;
}

/* ---- threads */

typedef void (*gomp_parallel_t)(void (*)(void *), void *, unsigned, unsigned);
typedef void (*micro_t)(int32_t *, int32_t *, ...);
typedef void (*kmpc_fork_call_t)(void *, int32_t, micro_t, ...);
typedef void (*kmpc_push_num_threads_t)(void *, int32_t, int32_t);
typedef int32_t (*kmpc_global_thread_num_t)(void *);
typedef int (*omp_get_thread_num_t)(void);

static gomp_parallel_t gomp_parallel;
static kmpc_fork_call_t kmpc_fork_call;
static kmpc_push_num_threads_t kmpc_push_num_threads;
static kmpc_global_thread_num_t kmpc_global_thread_num;
static omp_get_thread_num_t omp_get_thread_num;

/* LLVM's and Intel's runtimes want to know where in the source a parallel region is. */
static struct {
    int32_t reserved_1, flags, reserved_2, reserved_3;
    const char *source;
} place = {0, 2, 0, 0, ";gradcent;parallel;0;0;;"};

/* A function pointer and an object pointer need not be alike in C, but dlsym and OpenMP take them so. */
#define AS_FUNCTION(type, pointer) ((union { void *object; type function; }){.object = (pointer)}.function)

void gradcent_use_openmp(void *gomp, void *fork_call, void *push_num_threads, void *global_thread_num,
                         void *thread_num) {
    gomp_parallel = AS_FUNCTION(gomp_parallel_t, gomp);
    kmpc_fork_call = AS_FUNCTION(kmpc_fork_call_t, fork_call);
    kmpc_push_num_threads = AS_FUNCTION(kmpc_push_num_threads_t, push_num_threads);
    kmpc_global_thread_num = AS_FUNCTION(kmpc_global_thread_num_t, global_thread_num);
    omp_get_thread_num = AS_FUNCTION(omp_get_thread_num_t, thread_num);
}

typedef struct {
    void (*body)(void *);
    void *data;
} call_t;

static void micro(int32_t *global, int32_t *bound, ...) {
    (void)global;
    va_list arguments;
    va_start(arguments, bound);
    call_t *call = va_arg(arguments, call_t *);
    va_end(arguments);
    call->body(call->data);
}

void gradcent_parallel(void (*body)(void *), void *data, int threads) {
    if (threads > 1 && gomp_parallel) {
        gomp_parallel(body, data, (unsigned)threads, 0);
    } else if (threads > 1 && kmpc_fork_call && kmpc_push_num_threads && kmpc_global_thread_num) {
        call_t call = {body, data};
        kmpc_push_num_threads(&place, kmpc_global_thread_num(&place), threads);
        kmpc_fork_call(&place, 1, micro, &call);
    } else {
        body(data);
    }
}

int gradcent_thread_number(void) { return omp_get_thread_num ? omp_get_thread_num() : 0; }
