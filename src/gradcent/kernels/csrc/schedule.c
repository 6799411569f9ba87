/* From tensors to tasks: which kernels a tensor needs, the list of tasks of each stage, and running it. */
#include "gradcent.h"

#define TASK_ELEMENTS 131072 /* about what one task works on: 512 KiB of float32 gradient */
#define SMALL_ELEMENTS 4096  /* tensors up to this size share tasks */
#define SMALL_TASK 16384     /* of about this many elements */
#define PANEL_ELEMENTS 49152 /* a panel is read twice: this much of the gradient stays in cache */
#define PANEL_LEAST 32       /* two cache lines of each row */
#define FEW_ELEMENTS 1048576 /* bands of columns up to this many elements go through their stages together */

/* Columns. Rows are summed in chunks of about CHUNK_ELEMENTS, at most MOST_CHUNKS. The sums of all bands that are
 * processed together take at most SUMS doubles (512 KiB): a wide tensor is cut into bands of columns, not narrower than
 * BAND, because memory is fast at long runs only. */
#define CHUNK_ELEMENTS 131072
#define MOST_CHUNKS 32
#define SUMS 65536
#define BAND 4096
#define MAX_BANDS 64
#define MAX_BAND_TASKS (MAX_BANDS * MOST_CHUNKS)

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- which kernels */

static int is_split(const tensor_t *t) { return t->centralized && t->outer * t->inner > SPLIT && t->inner >= PIECE; }

static int64_t pieces(const tensor_t *t) { return (t->outer * t->inner + PIECE - 1) / PIECE; }

/* (Few rows need no stages: a panel of neighbours stays in cache whatever their number.) */
static int in_columns(const tensor_t *t) {
    return t->centralized && t->outer >= 8 && t->inner < SHORT && t->vectors * t->inner >= SHORT && t->numel > 65536;
}

static int64_t panel(const tensor_t *t) {
    if (t->inner >= SHORT) return 0;
    const int64_t fitting = t->outer == 1 ? BLOCK : PANEL_ELEMENTS / t->outer;
    return larger(smaller(larger(fitting, PANEL_LEAST), BLOCK) / t->inner, 1);
}

static void set_columns(tensor_t *t) {
    const int64_t row = t->vectors * t->inner;
    t->chunks = larger(smaller(smaller(t->outer * row / CHUNK_ELEMENTS, MOST_CHUNKS), t->outer / 4), 1);
    t->band = SUMS / (t->chunks + 2);
    if (t->band < smaller(row, BAND)) {
        t->band = smaller(row, BAND);
        t->chunks = SUMS / t->band - 2;
    }
    if (t->band >= row) {
        t->band = row;
    } else { /* equal bands of whole vectors and whole cache lines */
        const int64_t unit = 16 * t->inner, widest = t->band / unit * unit, bands = (row + widest - 1) / widest;
        t->band = (row + bands * unit - 1) / (bands * unit) * unit;
    }
}

/* ---- the lists of tasks */

typedef struct {
    task_t *items; /* NULL: they are only counted */
    int64_t count, elements;
    task_t discarded;
} tasks_t;

static task_t *add(tasks_t *tasks, int64_t tensor, int kind, int64_t elements) {
    task_t *task = tasks->items ? &tasks->items[tasks->count] : &tasks->discarded;
    tasks->count++;
    *task = (task_t){.tensor = (int32_t)tensor, .kind = kind, .elements_before = tasks->elements};
    tasks->elements += elements;
    return task;
}

/* `count` items of `elements` each, `step` of them to a task. */
static void add_range(tasks_t *tasks, int64_t tensor, int kind, int64_t count, int64_t step, int64_t elements) {
    for (int64_t begin = 0; begin < count; begin += step) {
        const int64_t end = smaller(begin + step, count);
        task_t *task = add(tasks, tensor, kind, (end - begin) * elements);
        task->range.begin = begin;
        task->range.end = end;
    }
}

/* Small tensors from k on, in one task; returns the first that is not part of it. */
static int64_t add_several(const job_t *job, int64_t k, tasks_t *tasks) {
    int64_t end = k, elements = 0;
    while (end < job->tensor_count && job->tensors[end].numel <= SMALL_ELEMENTS && elements < SMALL_TASK)
        elements += job->tensors[end++].numel;
    if (elements) {
        task_t *task = add(tasks, k, SEVERAL, elements);
        task->range.begin = k;
        task->range.end = end;
    }
    return end;
}

static void add_pieces(tasks_t *tasks, int64_t k, int stage, const tensor_t *t) {
    for (int64_t v = 0; v < t->batch * t->vectors; v++)
        for (int64_t p = 0; p < (stage == PIECE_MEAN ? 1 : pieces(t)); p++) {
            task_t *task = add(tasks, k, stage, PIECE);
            task->piece.vector = v;
            task->piece.piece = p;
        }
}

/* The tasks of one stage for all tensors but those in columns. PIECE_STEP also steps all that is not split. */
static void list_stage(const job_t *job, int stage, tasks_t *tasks) {
    for (int64_t k = 0; k < job->tensor_count; k++) {
        while (stage == PIECE_STEP && k < job->tensor_count && job->tensors[k].numel <= SMALL_ELEMENTS)
            k = add_several(job, k, tasks);
        if (k == job->tensor_count) return;
        const tensor_t *t = &job->tensors[k];
        if (t->numel == 0) continue;
        if (stage == UNSCALE) {
            add_range(tasks, k, UNSCALE, t->numel, TASK_ELEMENTS, 1);
        } else if (is_split(t)) {
            add_pieces(tasks, k, stage, t);
        } else if (stage != PIECE_STEP || in_columns(t)) {
            continue;
        } else if (!t->centralized) {
            add_range(tasks, k, FLAT, t->numel, TASK_ELEMENTS, 1);
        } else {
            int64_t step = larger(TASK_ELEMENTS / (t->outer * t->inner), 1);
            if (t->inner < SHORT) step = larger(step, t->panel);
            add_range(tasks, k, VECTORS, t->batch * t->vectors, step, t->outer * t->inner);
        }
    }
}

static void list_bands(const job_t *job, int stage, int count, tasks_t *tasks) {
    for (int32_t b = 0; b < count; b++) {
        const band_t *band = &job->bands[b];
        const tensor_t *t = &job->tensors[band->tensor];
        const int64_t block = BLOCK / t->inner * t->inner;
        const int64_t number = stage == COLUMN_MEAN ? (band->width + block - 1) / block : t->chunks;
        const int64_t elements = stage == COLUMN_MEAN ? block : t->outer * band->width / t->chunks;
        for (int64_t chunk = 0; chunk < number; chunk++) {
            task_t *task = add(tasks, band->tensor, stage, elements);
            task->column.band = b;
            task->column.chunk = (int32_t)chunk;
        }
    }
}

/* ---- running them */

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
        if ((double)tasks->items[middle].elements_before < limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void run_tasks(const job_t *job, const tasks_t *tasks, int threads, int backwards) {
    stage_t context = {gradcent_engine(), job, tasks};
    gradcent_distribute(tasks->count, threads, backwards, border, run_task, &context);
}

static void run_stage(const job_t *job, int stage, int threads, task_t *items) {
    tasks_t tasks = {.items = items};
    list_stage(job, stage, &tasks);
    run_tasks(job, &tasks, threads, 0);
}

/* A position among the bands of all tensors in columns. */
typedef struct {
    int64_t tensor, batch, first;
} cursor_t;

/* The bands that go through the stages together: few elements, so that the second reading of the gradient finds it in
 * the last-level cache, but many enough that small tensors share a stage. Returns their number; 0 after the last. */
static int next_bands(const job_t *job, cursor_t *at, band_t *bands) {
    int count = 0;
    int64_t elements = 0, sums = 0;
    for (; at->tensor < job->tensor_count; *at = (cursor_t){at->tensor + 1, 0, 0}) {
        const tensor_t *t = &job->tensors[at->tensor];
        if (!in_columns(t)) continue;
        for (const int64_t row = t->vectors * t->inner; at->batch < t->batch; at->batch++, at->first = 0)
            for (; at->first < row; at->first += t->band) {
                const int64_t width = smaller(t->band, row - at->first), room = (t->chunks + 2) * width;
                if (count == MAX_BANDS || sums + room > SUMS || (elements && elements + t->outer * width > FEW_ELEMENTS))
                    return count;
                bands[count++] = (band_t){at->tensor, at->batch, at->first, width, sums};
                elements += t->outer * width;
                sums += room;
            }
    }
    return count;
}

static void run_columns(job_t *job, int threads, task_t *items) {
    band_t bands[MAX_BANDS];
    cursor_t cursor = {0, 0, 0};
    job->bands = bands;
    for (int count; (count = next_bands(job, &cursor, bands));)
        for (int stage = COLUMN_SUM; stage <= COLUMN_STEP; stage++) {
            tasks_t tasks = {.items = items};
            list_bands(job, stage, count, &tasks);
            /* The step runs backwards: what was summed last is still in cache. */
            run_tasks(job, &tasks, threads, stage == COLUMN_STEP);
        }
    job->bands = NULL;
}

/* Allocate room for the sums of all stages (split vectors use it first, then columns) and for the tasks, before
 * anything is changed. */
static task_t *prepare(job_t *job, int64_t partial, int columns) {
    int64_t most = columns ? MAX_BAND_TASKS : 1;
    for (int stage = PIECE_SUM; stage <= UNSCALE; stage++) {
        tasks_t tasks = {0};
        if (stage == UNSCALE ? job->rule.unscale != 0 : stage == PIECE_STEP || partial) list_stage(job, stage, &tasks);
        most = larger(most, tasks.count);
    }
    const int64_t room = columns ? larger(partial, SUMS) : partial;
    job->partial = gradcent_allocate((size_t)room * sizeof *job->partial);
    task_t *items = gradcent_allocate((size_t)most * sizeof *items);
    if (job->partial && items) return items;
    gradcent_free(job->partial);
    gradcent_free(items);
    return NULL;
}

int gradcent_execute(job_t *job, int threads) {
    int64_t partial = 0, elements = 0;
    int columns = 0;
    for (int64_t k = 0; k < job->tensor_count; k++) {
        tensor_t *t = &job->tensors[k];
        elements += t->numel;
        if (!t->centralized || t->numel == 0) continue;
        if (t->outer == 1) { /* the two kept dims are neighbours: one dim */
            t->vectors *= t->batch;
            t->batch = 1;
        }
        t->panel = panel(t);
        t->partial = partial;
        if (is_split(t)) partial += t->batch * t->vectors * (pieces(t) + 2);
        if (in_columns(t)) set_columns(t), columns = 1;
    }
    if (elements < 32768) threads = 1;
    task_t *items = prepare(job, partial, columns);
    if (!items) return -1;
    if (job->rule.unscale != 0) run_stage(job, UNSCALE, threads, items);
    for (int stage = PIECE_SUM; stage <= PIECE_STEP; stage++)
        if (stage == PIECE_STEP || partial) run_stage(job, stage, threads, items);
    if (columns) run_columns(job, threads, items);
    gradcent_free(items);
    gradcent_free(job->partial);
    job->partial = NULL;
    return 0;
}
