/* Weight vectors in long runs of memory, one by one: compute the mean, then step while the vector is in cache.
 * Included after run_io.h with the same R and NAME. */

/* Positions begin..end of the outer * inner elements of a vector, as runs of memory. */
#define RUNS(begin, end)                                                                               \
    const int64_t b_ = vector / t->vectors, v_ = vector % t->vectors;                                  \
    const int64_t most = IN_PLACE && !(job->rule.update && t->centralized) ? PIECE : BLOCK;            \
    for (int64_t p = (begin), n, at; n = t->inner - p % t->inner, n = n < (end) - p ? n : (end) - p,   \
                 n = n < most ? n : most,                                                              \
                 at = ((b_ * t->outer + p / t->inner) * t->vectors + v_) * t->inner + p % t->inner,    \
                 p < (end);                                                                            \
         p += n)

#define TINY 0x1p-64 /* the scale of float64 values whose sum overflowed */

static double NAME(sum_piece)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t vector,
                              int64_t begin, int64_t end, double shift, double scale) {
    const rule_t *rule = &job->rule;
    double total = 0;
    R x[BLOCK], y[BLOCK];
    RUNS(begin, end) {
        if (rule->update) {
            NAME(compute_update)(rule, t, k, at, n, x);
            total += NAME(sum_run)(n, x, NULL, 1, 0, shift, scale);
        } else {
            const R *g = NAME(load)(t, GRAD, at, n, x), *w = rule->projected ? NAME(load)(t, PARAM, at, n, y) : NULL;
            total += NAME(sum_run)(n, g, w, (R)rule->sign, (R)rule->decay, shift, scale);
        }
    }
    return total;
}

/* float64 is summed relative to the vector's first element, so that a constant vector leaves exactly 0. */
static double NAME(shift_of)(const job_t *job, const tensor_t *t, int64_t vector) {
    if (!IS_DOUBLE || job->rule.update) return 0;
    const int64_t at = (vector / t->vectors * t->outer * t->vectors + vector % t->vectors) * t->inner;
    const R x = (R)job->rule.sign * ((const R *)t->data[GRAD])[at];
    return (double)(job->rule.projected && t->data[PARAM] ? x + (R)job->rule.decay * ((const R *)t->data[PARAM])[at] : x);
}

/* The mean from the sum of a vector's elements, from each of which `shift` was subtracted. */
static void NAME(mean_from)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t vector, double total,
                            double shift, R *high, R *low) {
    const int64_t length = t->outer * t->inner;
    double mean = total / (double)length;
    if (IS_DOUBLE && !isfinite(mean)) {
        /* The sum of values near the largest may overflow where the mean does not. */
        mean = NAME(sum_piece)(job, t, k, vector, 0, length, 0, TINY) / (double)length / TINY;
        shift = 0;
    }
    NAME(split)(mean, shift, high, low);
}

static void NAME(mean_of_long)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t vector,
                               const double *partial, R *high, R *low) {
    const int64_t length = t->outer * t->inner, pieces = (length + PIECE - 1) / PIECE;
    double total = 0, shift = NAME(shift_of)(job, t, vector);
    for (int64_t q = 0; q < pieces; q++) {
        int64_t end = (q + 1) * PIECE < length ? (q + 1) * PIECE : length;
        total += partial ? partial[q] : NAME(sum_piece)(job, t, k, vector, q * PIECE, end, shift, 1);
    }
    NAME(mean_from)(job, t, k, vector, total, shift, high, low);
}

static void NAME(step_piece)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t vector,
                             int64_t begin, int64_t end, R high, R low) {
    RUNS(begin, end) NAME(apply)(&job->rule, t, k, at, n, &high, &low, 1);
}

/* Contiguous rows step in turn. While a row steps, the next one is summed: so all operands are read from memory all
 * the time, instead of some of them in turn. */
static void NAME(step_rows_in_turn)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t begin,
                                    int64_t end) {
    const rule_t *rule = &job->rule;
    const int64_t length = t->inner;
    const R *w = rule->projected ? (const R *)t->data[PARAM] : NULL; /* a step has one */
    double shift = NAME(shift_of)(job, t, begin), total;
    total = NAME(sum_run)(length, (const R *)t->data[GRAD] + begin * length, w ? w + begin * length : NULL, (R)rule->sign,
                          (R)rule->decay, shift, 1);
    for (int64_t vector = begin; vector < end; vector++) {
        const int64_t at = vector * length, next = at + length;
        R high, low;
        NAME(mean_from)(job, t, k, vector, total, shift, &high, &low);
        if (vector + 1 == end) {
            NAME(apply)(rule, t, k, at, length, &high, &low, 1);
            return;
        }
        shift = NAME(shift_of)(job, t, vector + 1);
        NAME(run_t) r = {.w = (R *)t->data[PARAM] + at, .g = (R *)t->data[GRAD] + at, .high = &high, .low = &low, .shared_mean = 1};
        if (t->data[STATE]) r.m = (R *)t->data[STATE] + at;
        if (t->data[STATE2]) r.v = (R *)t->data[STATE2] + at;
        total = NAME(step_and_sum_next)(rule, k, length, &r, r.g + length, w ? w + next : NULL, shift);
    }
}

/* One stage of one piece of a split vector. */
static void NAME(run_piece)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(constants) *k) {
    const int64_t length = t->outer * t->inner, pieces = (length + PIECE - 1) / PIECE, vector = task->piece.vector;
    const int64_t begin = task->piece.piece * PIECE, end = begin + PIECE < length ? begin + PIECE : length;
    double *partial = job->partial + t->partial + vector * (pieces + 2); /* sums, then the mean */
    if (task->kind == PIECE_SUM) {
        partial[task->piece.piece] = NAME(sum_piece)(job, t, k, vector, begin, end, NAME(shift_of)(job, t, vector), 1);
    } else if (task->kind == PIECE_MEAN) {
        R high, low;
        NAME(mean_of_long)(job, t, k, vector, partial, &high, &low);
        partial[pieces] = (double)high;
        partial[pieces + 1] = (double)low;
    } else {
        NAME(step_piece)(job, t, k, vector, begin, end, (R)partial[pieces], (R)partial[pieces + 1]);
    }
}
