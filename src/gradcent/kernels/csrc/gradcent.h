/* What the parts of the native kernels share: plain pointers, the four integers of a layout, and the
 * numbers of an optimizer's rule. No torch and no Python here.
 *
 * The work of one call is a list of tasks. A task owns whole weight vectors (or a fixed piece of a very
 * long one), so the result depends neither on the number of threads nor on who ran what. */
#ifndef GRADCENT_H
#define GRADCENT_H

#include <stdint.h>

enum { F32, F64, BF16, F16 };
enum { CENTRALIZE, SGD, ADAM, ADAGRAD };

/* What an entry of tensor.data is. CENTRALIZE has no state: it reads GRAD and writes STATE (which may
 * be the same memory), and PARAM is the weight, or NULL when there is no decay. */
enum { PARAM, GRAD, STATE, STATE2, OPERANDS };

/* A vector longer than PIECE is summed in pieces of that many elements, always; one longer than SPLIT
 * is also shared out among threads, piece by piece. */
#define PIECE 65536
#define SPLIT (4 * PIECE)

/* Elements worked on at a time: all operands of a block together stay in the first-level cache. */
#define BLOCK 512
/* Vectors whose elements lie in runs shorter than this are handled side by side, a panel at a time. */
#define SHORT 64
/* Short rows of at least so many elements, whole registers of them, step row by row; others as one run, each
 * element with its own copy of the mean. */
#define ROW 24
/* Rows of a large tensor of columns are summed in chunks of about so many elements, at most so many chunks. */
#define CHUNK_ELEMENTS 131072
#define MOST_CHUNKS 32

typedef struct {
    char *data[OPERANDS];
    int64_t batch, outer, vectors, inner; /* the layout, in the order of memory */
    int64_t numel;
    double rate;       /* the learning rate with this tensor's corrections */
    double correction; /* Adam: sqrt(1 - beta2^t) */
    int64_t panel;     /* vectors handled side by side, if their runs are short */
    int64_t chunks;    /* of rows, if its vectors are columns */
    int64_t partial;   /* index of this tensor's first partial sum, if its vectors are split or columns */
    uint8_t dtype;
    uint8_t centred; /* 0: the plan leaves this tensor alone */
    uint8_t first;   /* NEW_BUFFER, LEFT_OUT or 0 */
} tensor_t;

/* SGD: the momentum buffer holds nothing yet. Or: this tensor has no part in the call. */
enum { NEW_BUFFER = 1, LEFT_OUT };

typedef struct {
    int op;
    int update;    /* centralize the change of the weight instead of the gradient */
    int nesterov;
    int coupled;   /* x = sign * g + decay * w, otherwise x = sign * g */
    int projected; /* the mean is that of x, decay included; otherwise that of sign * g */
    double decay;  /* coupled decay */
    double shrink; /* decoupled decay: lr * decay */
    double sign;   /* -1 to maximize */
    double momentum, keep; /* m = momentum * m + keep * x */
    double beta1, beta2, eps;
    double unscale; /* what a gradient scaler multiplied the gradients by, or 0 */
} rule_t;

/* FLAT: elements begin..end, no mean. VECTORS: whole weight vectors begin..end. PIECE_SUM, PIECE_MEAN
 * and PIECE_STEP: the three stages of a vector that is split.
 * SEVERAL: whole small tensors, from this one to the one before end.
 * UNSCALE: divide elements begin..end. COLUMN_…: the three stages of a large tensor of columns; begin is
 * the batch and end the chunk of rows (for means: vectors begin..end). */
enum { FLAT, VECTORS, SEVERAL, PIECE_SUM, PIECE_MEAN, PIECE_STEP, UNSCALE, COLUMN_SUM, COLUMN_MEAN, COLUMN_STEP };

typedef struct {
    int32_t tensor;
    int32_t kind;
    int64_t begin, end; /* for pieces: begin is the vector, end the piece */
    int64_t before;     /* elements in the tasks before this one */
} task_t;

typedef struct {
    rule_t rule;
    tensor_t *tensors;
    int64_t tensor_count;
    double *partial;
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

/* plan.c */
int gradcent_arrange(tensor_t *tensor, int ndim, const int64_t *shape, const int64_t *strides,
                     const int64_t layout[4]);
int gradcent_execute(job_t *job, int threads);

/* share.c: item(context, k) for k in 0..count. border gives where a part begins, if the parts are not equal. */
void gradcent_share(int64_t count, int threads, int backwards, int64_t (*border)(void *context, int part, int parts),
                    void (*item)(void *context, int64_t k), void *context);

/* threads.c */
const engine_t *gradcent_engine(void);
int gradcent_choose_engine(const char *name); /* 0, or -1 when this machine cannot run it */
void gradcent_use_openmp(void *gomp_parallel, void *kmpc_fork_call, void *kmpc_push_num_threads,
                         void *kmpc_global_thread_num, void *omp_get_thread_num);
void gradcent_parallel(void (*body)(void *), void *data, int threads);
int gradcent_thread_number(void); /* of the caller, in its parallel region */

#endif
