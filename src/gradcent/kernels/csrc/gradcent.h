/* The types that all parts of the native kernels share: tensors as plain pointers with the four integers of a
 * layout, the constants of an optimizer's rule, and tasks. Nothing here knows torch or Python.
 *
 * The work of one call is a list of tasks. A task covers whole weight vectors (or a fixed piece of a very long
 * one), so the result does not depend on the number of threads or on which thread ran which task. */
#ifndef GRADCENT_H
#define GRADCENT_H

#include <stddef.h>
#include <stdint.h>

enum { F32, F64, BF16, F16 };
enum { CENTRALIZE, SGD, ADAM, ADAGRAD };

/* The operands of a tensor. CENTRALIZE reads GRAD, and PARAM if there is decay, and writes OUT (which may be the
 * memory of GRAD). The steps read GRAD and update PARAM and the states in place. */
enum { PARAM, GRAD, STATE, STATE2, OUT, OPERANDS };

/* A vector longer than PIECE is summed in pieces of that many elements. A vector longer than SPLIT is also
 * distributed over threads, piece by piece. */
#define PIECE 65536
#define SPLIT (4 * PIECE)

/* Elements processed at a time: all operands of a block together fit in the first-level cache. */
#define BLOCK 512
/* Vectors whose elements lie in runs shorter than this are processed side by side, a panel at a time. */
#define SHORT 64
/* Short rows of at least this many elements, a multiple of eight, step row by row. Others step as one run in which
 * each element has its own copy of the mean. */
#define ROW 24

typedef struct {
    char *data[OPERANDS];
    int64_t batch, outer, vectors, inner; /* the layout, in memory order */
    int64_t numel;
    double rate;       /* the learning rate with this tensor's bias correction */
    double correction; /* Adam: sqrt(1 - beta2^t) */
    int64_t panel;     /* vectors processed side by side, if their runs are short */
    int64_t chunks;    /* chunks of rows, if the vectors are columns */
    int64_t band;      /* columns processed together, if the vectors are columns */
    int64_t partial;   /* index of this tensor's first partial sum, if its vectors are split */
    uint8_t dtype;
    uint8_t centralized; /* 0: the plan leaves this tensor alone */
    uint8_t new_buffer;  /* SGD: the momentum buffer was just created and holds no momentum yet */
    uint8_t skipped;     /* this tensor takes no part in the call */
} tensor_t;

typedef struct {
    int op;
    int update;    /* centralize the change of the weight instead of the gradient */
    int nesterov;
    int coupled;   /* x = sign * g + decay * w, otherwise x = sign * g */
    int projected; /* the mean is that of x, decay included; otherwise that of sign * g */
    double decay;  /* coupled decay */
    double shrink; /* decoupled decay: lr * decay */
    double sign;   /* -1 to maximize */
    double momentum, undamped; /* m = momentum * m + undamped * x */
    double beta1, beta2, eps;
    double unscale; /* the gradient scaler's factor in the gradients, or 0 */
} rule_t;

/* The kinds of tasks, and which member of the union each one uses:
 *   FLAT           range: elements of a tensor without vectors
 *   VECTORS        range: whole weight vectors
 *   SEVERAL        range: whole small tensors
 *   UNSCALE        range: elements to divide by the gradient scale
 *   PIECE_SUM, PIECE_MEAN, PIECE_STEP      piece: the three stages of a split vector
 *   COLUMN_SUM, COLUMN_MEAN, COLUMN_STEP   column: the three stages of a band of columns */
enum { FLAT, VECTORS, SEVERAL, PIECE_SUM, PIECE_MEAN, PIECE_STEP, UNSCALE, COLUMN_SUM, COLUMN_MEAN, COLUMN_STEP };

typedef struct {
    int32_t tensor;
    int32_t kind;
    union {
        struct { int64_t begin, end; } range;
        struct { int64_t vector, piece; } piece;
        struct {
            int32_t band;  /* index into job_t.bands */
            int32_t chunk; /* of rows; COLUMN_MEAN: block of columns */
        } column;
    };
    int64_t elements_before; /* in the tasks before this one */
} task_t;

/* Neighbouring columns of one batch of a tensor, whose sums are in memory at the same time. */
typedef struct {
    int64_t tensor, batch;
    int64_t first, width; /* in elements of a row */
    int64_t sums;         /* index of the sums: a row for each chunk, then a row each for the two parts of the means */
} band_t;

typedef struct {
    rule_t rule;
    tensor_t *tensors;
    int64_t tensor_count;
    double *partial;
    const band_t *bands;
} job_t;

/* One instruction set's build of engine.h. */
typedef struct {
    const char *name;
    void (*run)(const job_t *, const task_t *);
} engine_t;

extern const engine_t gradcent_engine_baseline;
#if defined(__x86_64__)
extern const engine_t gradcent_engine_avx2;
extern const engine_t gradcent_engine_avx512;
#endif

/* memory_order.c: write the layout in memory order; -1 if the strides do not allow that. */
int gradcent_memory_order(tensor_t *tensor, int ndim, const int64_t *shape, const int64_t *strides,
                          const int64_t layout[4]);

/* schedule.c: run the job; -1 if memory is short, and then nothing has been changed. */
int gradcent_execute(job_t *job, int threads);

/* work_queue.c: item(context, k) for k in 0..count. `border` returns the first item of a part, if the parts are not
 * equal. */
void gradcent_distribute(int64_t count, int threads, int backwards, int64_t (*border)(void *context, int part, int parts),
                         void (*item)(void *context, int64_t k), void *context);

/* parallel.c: torch's threads. */
typedef int32_t (*parallel_for_t)(int64_t begin, int64_t end, int64_t grain,
                                  void (*body)(int64_t begin, int64_t end, void *context), void *context);
typedef int32_t (*get_num_threads_t)(uint32_t *count);
void gradcent_use_threads(parallel_for_t parallel_for, get_num_threads_t get_num_threads);
int gradcent_thread_count(void);
void gradcent_parallel(int parts, void (*body)(void *context, int part), void *context);

/* instruction_set.c */
const engine_t *gradcent_engine(void);
int gradcent_choose_engine(const char *name); /* 0, or -1 if this machine cannot run it */

/* memory.c: every allocation of the native kernels. Zeroed; NULL if memory is short. */
void *gradcent_allocate(size_t bytes);
void gradcent_free(void *pointer);
size_t gradcent_peak_bytes(int reset);        /* the largest total since the last reset */
void gradcent_fail_allocation(int64_t after); /* for tests: let an allocation fail after so many more; -1: never */

#endif
