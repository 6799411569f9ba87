/* From tensors to tasks: the layout in the order of memory, the list of tasks, and running it. */
#include <stdlib.h>
#include <string.h>

#include "gradcent.h"

#define TASK_ELEMENTS 131072 /* about what one task works on: 512 KiB of float32 gradient */
#define SMALL_ELEMENTS 4096  /* tensors up to this size share tasks */
#define SMALL_TASK 16384     /* of about so many elements */
#define PANEL_ELEMENTS 49152 /* a panel of columns is read twice: so much of the gradient stays in cache */
#define PANEL_LEAST 32       /* but two cache lines are the least worth fetching from each row */
#define FEW_ELEMENTS 1048576 /* tensors of columns up to so many elements go through their stages together */
#define MAX_PARTS 64
#define BATCH 0 /* roles, in the layout's own order */

typedef struct {
    int64_t size, stride;
    int averaged;
} part_t;

/* Cut the dims of the tensor at the borders of the layout; returns the number of parts or -1. */
static int cut(int ndim, const int64_t *shape, const int64_t *strides, const int64_t layout[4], part_t *parts) {
    int count = 0, role = BATCH;
    int64_t left = layout[BATCH];
    for (int dim = 0; dim < ndim; dim++) {
        int64_t size = shape[dim];
        while (size > 1) {
            while (left == 1 && role < 3) left = layout[++role];
            int64_t piece = size < left ? size : left;
            if (piece <= 1 || size % piece || left % piece || count == MAX_PARTS) return -1;
            size /= piece;
            left /= piece;
            parts[count++] = (part_t){piece, strides[dim] * size, role == 1 || role == 3};
        }
    }
    return count;
}

/* Write the layout as memory has it. Any dense order of dims (channels-last, transposed) is again a view
 * (batch, outer, vectors, inner) if averaged and kept dims alternate at most that often. Returns 0, or
 * -1 when it is not: then the caller makes a contiguous copy. */
int gradcent_arrange(tensor_t *tensor, int ndim, const int64_t *shape, const int64_t *strides,
                     const int64_t layout[4]) {
    part_t parts[MAX_PARTS];
    const int64_t whole[4] = {1, 1, 1, tensor->numel};
    int count = cut(ndim, shape, strides, layout ? layout : whole, parts);
    if (count < 0) return -1;
    for (int i = 1; i < count; i++) /* outermost in memory first */
        for (int j = i; j > 0 && parts[j - 1].stride < parts[j].stride; j--) {
            part_t other = parts[j];
            parts[j] = parts[j - 1];
            parts[j - 1] = other;
        }
    int64_t expected = 1, sizes[4] = {1, 1, 1, 1};
    int role = 3;
    for (int i = count - 1; i >= 0; i--) {
        if (parts[i].stride != expected) return -1; /* gaps or overlaps */
        expected *= parts[i].size;
        while (role >= 0 && (role == 1 || role == 3) != parts[i].averaged) role--;
        if (role < 0) return -1;
        sizes[role] *= parts[i].size;
    }
    tensor->batch = sizes[0];
    tensor->outer = sizes[1];
    tensor->vectors = sizes[2];
    tensor->inner = sizes[3];
    return 0;
}

/* ---- the list of tasks */

typedef struct {
    task_t *items; /* NULL: they are only counted */
    int64_t count, elements;
} tasks_t;

static void add(tasks_t *tasks, int64_t tensor, int kind, int64_t begin, int64_t end, int64_t elements) {
    if (tasks->items) tasks->items[tasks->count] = (task_t){(int32_t)tensor, kind, begin, end, tasks->elements};
    tasks->count++;
    tasks->elements += elements;
}

/* `count` items of `elements` each, `step` of them to a task. */
static void add_range(tasks_t *tasks, int64_t tensor, int kind, int64_t count, int64_t step, int64_t elements) {
    for (int64_t begin = 0; begin < count; begin += step) {
        int64_t end = begin + step < count ? begin + step : count;
        add(tasks, tensor, kind, begin, end, (end - begin) * elements);
    }
}

static int is_split(const tensor_t *t) { return t->centred && t->outer * t->inner > SPLIT && t->inner >= PIECE; }

static int64_t pieces(const tensor_t *t) { return (t->outer * t->inner + PIECE - 1) / PIECE; }

/* (Few rows need no stages: a panel of neighbours stays in cache whatever their number.) */
static int in_columns(const tensor_t *t) {
    return t->centred && t->outer >= 8 && t->inner < SHORT && t->vectors * t->inner >= SHORT && t->numel > 65536;
}

static int64_t panel(const tensor_t *t) {
    if (t->inner >= SHORT) return 0;
    int64_t elements = t->outer == 1 ? BLOCK : PANEL_ELEMENTS / t->outer;
    if (elements < PANEL_LEAST) elements = PANEL_LEAST;
    if (elements > BLOCK) elements = BLOCK;
    return elements / t->inner > 0 ? elements / t->inner : 1;
}

static int64_t chunks(const tensor_t *t) {
    int64_t count = t->outer * t->vectors * t->inner / CHUNK_ELEMENTS;
    if (count > MOST_CHUNKS) count = MOST_CHUNKS;
    if (count > t->outer / 4) count = t->outer / 4;
    return count > 0 ? count : 1;
}

/* What the sums and means of a tensor of columns take. */
static int64_t column_room(const tensor_t *t) {
    return t->batch * (t->chunks + 2) * t->vectors * t->inner;
}

static void list_columns(const job_t *job, int stage, int64_t k, tasks_t *tasks) {
    const tensor_t *t = &job->tensors[k];
    const int64_t step = 512 / t->inner, elements = t->numel / t->batch / t->chunks;
    for (int64_t b = 0; stage == COLUMN_MEAN && b < t->batch; b++) /* a task keeps to one batch */
        for (int64_t v = 0; v < t->vectors; v += step)
            add(tasks, k, stage, b * t->vectors + v, b * t->vectors + (v + step < t->vectors ? v + step : t->vectors), step);
    for (int64_t b = 0; stage != COLUMN_MEAN && b < t->batch; b++)
        for (int64_t chunk = 0; chunk < t->chunks; chunk++) add(tasks, k, stage, b, chunk, elements);
}

/* Small tensors from k on, in one task; returns the first that is not part of it. */
static int64_t add_several(const job_t *job, int64_t k, tasks_t *tasks) {
    int64_t end = k, elements = 0;
    while (end < job->tensor_count && job->tensors[end].numel <= SMALL_ELEMENTS && elements < SMALL_TASK)
        elements += job->tensors[end++].numel;
    if (elements) add(tasks, k, SEVERAL, k, end, elements);
    return end;
}

static void list_all(const job_t *job, int stage, tasks_t *tasks) {
    for (int64_t k = 0; k < job->tensor_count; k++) {
        while (stage == PIECE_STEP && k < job->tensor_count && job->tensors[k].numel <= SMALL_ELEMENTS)
            k = add_several(job, k, tasks);
        if (k == job->tensor_count) return;
        const tensor_t *t = &job->tensors[k];
        int split = is_split(t);
        if (t->numel == 0 || (in_columns(t) && stage != UNSCALE)) continue;
        if (stage == UNSCALE) {
            add_range(tasks, k, UNSCALE, t->numel, TASK_ELEMENTS, 1);
        } else if (stage == PIECE_SUM || stage == PIECE_MEAN || (stage == PIECE_STEP && split)) {
            for (int64_t v = 0; split && v < t->batch * t->vectors; v++)
                for (int64_t p = 0; p < (stage == PIECE_MEAN ? 1 : pieces(t)); p++) add(tasks, k, stage, v, p, PIECE);
        } else if (!t->centred) {
            add_range(tasks, k, FLAT, t->numel, TASK_ELEMENTS, 1);
        } else {
            int64_t step = TASK_ELEMENTS / (t->outer * t->inner);
            if (t->inner < SHORT && step < t->panel) step = t->panel;
            add_range(tasks, k, VECTORS, t->batch * t->vectors, step > 0 ? step : 1, t->outer * t->inner);
        }
    }
}

/* ---- running it */

typedef struct {
    const engine_t *engine;
    const job_t *job;
    const tasks_t *tasks;
} stage_t;

static void run_task(void *context, int64_t k) {
    const stage_t *stage = context;
    stage->engine->run(stage->job, &stage->tasks->items[k]);
}

/* The first task of a part: every part has about as many elements. */
static int64_t border(void *context, int part, int parts) {
    const tasks_t *tasks = ((stage_t *)context)->tasks;
    const double limit = (double)tasks->elements * part / parts;
    int64_t low = 0, high = tasks->count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if ((double)tasks->items[middle].before < limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* For the stages of columns: tensors begin..end. For the others: all. */
static void list(const job_t *job, int stage, int64_t begin, int64_t end, tasks_t *tasks) {
    if (stage < COLUMN_SUM) {
        list_all(job, stage, tasks);
        return;
    }
    for (int64_t k = begin; k < end; k++)
        if (in_columns(&job->tensors[k])) list_columns(job, stage, k, tasks);
}

static void count(const job_t *job, int stage, int64_t begin, int64_t end, int64_t *most) {
    tasks_t tasks = {0};
    list(job, stage, begin, end, &tasks);
    if (tasks.count > *most) *most = tasks.count;
}

static void run_stage(const job_t *job, int stage, int64_t begin, int64_t end, int threads, task_t *items) {
    tasks_t tasks = {.items = items};
    list(job, stage, begin, end, &tasks);
    stage_t context = {gradcent_engine(), job, &tasks};
    /* columns step backwards: what was summed last is in cache still */
    gradcent_share(tasks.count, threads, stage == COLUMN_STEP, border, run_task, &context);
}

/* Tensors of columns are taken few at a time, so that their second reading finds them in the last-level cache,
 * and small ones together. Returns the first tensor that is too many for those from `begin` on. */
static int64_t few_columns(job_t *job, int64_t begin, int64_t *room) {
    int64_t k = begin, elements = 0;
    *room = 0;
    for (; k < job->tensor_count; k++) {
        tensor_t *t = &job->tensors[k];
        if (!in_columns(t)) continue;
        if (elements && elements + t->numel > FEW_ELEMENTS) break;
        elements += t->numel;
        t->partial = *room;
        *room += column_room(t);
    }
    return k;
}

/* Returns 0, or -1 when memory is short. */
int gradcent_execute(job_t *job, int threads) {
    int64_t partial = 0, elements = 0;
    for (int64_t k = 0; k < job->tensor_count; k++) {
        tensor_t *t = &job->tensors[k];
        elements += t->numel;
        if (!t->centred || t->numel == 0) continue;
        if (t->outer == 1) { /* the two kept dims are neighbours: one */
            t->vectors *= t->batch;
            t->batch = 1;
        }
        t->panel = panel(t);
        t->chunks = chunks(t);
        t->partial = partial;
        if (is_split(t)) partial += t->batch * t->vectors * (pieces(t) + 2);
    }
    if (elements < 32768) threads = 1;
    /* One room for the sums of all stages (split vectors use it first, then columns) and one for their tasks, had
     * before anything is touched. */
    const int unscale = job->rule.unscale != 0;
    int64_t room = partial, most = 1, some;
    for (int stage = PIECE_SUM; stage <= UNSCALE; stage++)
        if (stage == PIECE_STEP || (stage == UNSCALE ? unscale : partial != 0)) count(job, stage, 0, 0, &most);
    for (int64_t k = 0, end; k < job->tensor_count; k = end) {
        end = few_columns(job, k, &some);
        if (some > room) room = some;
        for (int stage = COLUMN_SUM; some && stage <= COLUMN_STEP; stage++) count(job, stage, k, end, &most);
    }
    job->partial = malloc(((size_t)room + 1) * sizeof(double));
    task_t *items = malloc((size_t)most * sizeof *items);
    const int failed = !job->partial || !items;
    if (!failed) {
        if (unscale) run_stage(job, UNSCALE, 0, 0, threads, items);
        if (partial) run_stage(job, PIECE_SUM, 0, 0, threads, items);
        if (partial) run_stage(job, PIECE_MEAN, 0, 0, threads, items);
        run_stage(job, PIECE_STEP, 0, 0, threads, items);
        for (int64_t k = 0, end; k < job->tensor_count; k = end) {
            end = few_columns(job, k, &some);
            for (int stage = COLUMN_SUM; some && stage <= COLUMN_STEP; stage++) run_stage(job, stage, k, end, threads, items);
        }
    }
    free(items);
    free(job->partial);
    job->partial = NULL;
    return failed ? -1 : 0;
}
