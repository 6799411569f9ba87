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
#include "rules.h"
#include "sums.h"
#include "vectors.h"
#include "columns.h"
#include "run.h"
#undef R
#undef NAME
#undef ROOT

#define R double
#define NAME(x) x##_f64
#define ROOT sqrt
#include "rules.h"
#include "sums.h"
#include "vectors.h"
#include "columns.h"
#include "run.h"
#undef R
#undef NAME
#undef ROOT

static void run(const job_t *job, const task_t *task) {
    if (job->tensors[task->tensor].dtype == F64)
        run_f64(job, task);
    else
        run_f32(job, task);
}

const engine_t ENGINE = {ENGINE_NAME, run};
