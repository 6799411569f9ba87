/* All kernels for one instruction set. A file sets ENGINE and ENGINE_NAME (and a target pragma) and
 * includes this; the only thing it exports is its engine_t. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gradcent.h"

#include "half.h"

#define INLINE static inline __attribute__((always_inline))

/* Four neighbouring elements of a vector of eight. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define PART(type, x, k) __builtin_shufflevector(x, x, k, (k) + 1, (k) + 2, (k) + 3)
#endif
#endif
#ifndef PART
#define PART(type, x, k) ((type){(x)[k], (x)[(k) + 1], (x)[(k) + 2], (x)[(k) + 3]})
#endif

#define R float
#define NAME(x) x##_f32
#define SQRT sqrtf
/* Four of eight values in double. GCC 12, left to itself, converts them by twos and through memory. */
#if defined(GRADCENT_F16C)
#define TO_DOUBLE(x, first) ((d4_f32)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)(x), (first) / 4)))
#else
#define TO_DOUBLE(x, first) __builtin_convertvector(PART(r4_f32, x, first), d4_f32)
#endif
#include "update_rules.h"
#include "reduce.h"
#include "run_io.h"
#include "row_kernels.h"
#include "panel_kernels.h"
#include "row_streams.h"
#include "column_kernels.h"
#include "run_task.h"
#undef R
#undef NAME
#undef SQRT
#undef TO_DOUBLE

#define R double
#define NAME(x) x##_f64
#define SQRT sqrt
#define TO_DOUBLE(x, first) PART(d4_f64, x, first)
#include "update_rules.h"
#include "reduce.h"
#include "run_io.h"
#include "row_kernels.h"
#include "panel_kernels.h"
#include "row_streams.h"
#include "column_kernels.h"
#include "run_task.h"
#undef R
#undef NAME
#undef SQRT
#undef TO_DOUBLE

static void run_one(const job_t *job, const task_t *task) {
    if (job->tensors[task->tensor].dtype == F64)
        run_f64(job, task);
    else
        run_f32(job, task);
}

/* Tiny tensors end before the processor's own prefetching begins. (The kernels prefetch for larger ones:
 * update_rules.h.) */
#define TINY_TENSOR 128
static void prefetch_tiny(const tensor_t *t) {
    for (int k = 0; k < OPERANDS && t->numel <= TINY_TENSOR; k++)
        for (int64_t at = 0; t->data[k] && at < t->numel; at += 16) __builtin_prefetch(t->data[k] + 4 * at);
}

static void run(const job_t *job, const task_t *task) {
    if (task->kind != SEVERAL) {
        run_one(job, task);
        return;
    }
    for (int64_t k = task->range.begin; k < task->range.end; k++) {
        const tensor_t *t = &job->tensors[k];
        if (k + 1 < job->tensor_count) prefetch_tiny(t + 1);
        const task_t whole = {.tensor = (int32_t)k, .kind = t->centralized ? VECTORS : FLAT,
                              .range = {0, t->centralized ? t->batch * t->vectors : t->numel}};
        if (t->numel) run_one(job, &whole);
    }
}

const engine_t ENGINE = {ENGINE_NAME, run};
