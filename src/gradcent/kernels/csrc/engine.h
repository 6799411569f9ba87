/* All kernels for one instruction set. A file sets ENGINE and ENGINE_NAME (and a target pragma) and
 * includes this; the only thing it exports is its engine_t. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gradcent.h"

#include "convert.h"

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
#define ROOT sqrtf
/* Four of eight values in double. GCC 12, left to itself, converts them by twos and through memory. */
#if defined(GRADCENT_F16C)
#define WIDEN(x, first) ((d4_f32)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)(x), (first) / 4)))
#else
#define WIDEN(x, first) __builtin_convertvector(PART(r4_f32, x, first), d4_f32)
#endif
#include "rules.h"
#include "sums.h"
#include "vectors.h"
#include "fronts.h"
#include "columns.h"
#include "run.h"
#undef R
#undef NAME
#undef ROOT
#undef WIDEN

#define R double
#define NAME(x) x##_f64
#define ROOT sqrt
#define WIDEN(x, first) PART(d4_f64, x, first)
#include "rules.h"
#include "sums.h"
#include "vectors.h"
#include "fronts.h"
#include "columns.h"
#include "run.h"
#undef R
#undef NAME
#undef ROOT
#undef WIDEN

static void run_one(const job_t *job, const task_t *task) {
    if (job->tensors[task->tensor].dtype == F64)
        run_f64(job, task);
    else
        run_f32(job, task);
}

/* Tiny tensors end before the processor has guessed what is read next, so it is told. (Larger ones
 * ask for themselves: rules.h.) */
#define TINY_TENSOR 128
static void fetch(const tensor_t *t) {
    for (int k = 0; k < OPERANDS && t->numel <= TINY_TENSOR; k++)
        for (int64_t at = 0; t->data[k] && at < t->numel; at += 16) __builtin_prefetch(t->data[k] + 4 * at);
}

static void run(const job_t *job, const task_t *task) {
    if (task->kind != SEVERAL) {
        run_one(job, task);
        return;
    }
    for (int64_t k = task->begin; k < task->end; k++) {
        const tensor_t *t = &job->tensors[k];
        if (k + 1 < job->tensor_count) fetch(t + 1);
        const task_t whole = {(int32_t)k, t->centred ? VECTORS : FLAT, 0, t->centred ? t->batch * t->vectors : t->numel, 0};
        if (t->numel) run_one(job, &whole);
    }
}

const engine_t ENGINE = {ENGINE_NAME, run};
