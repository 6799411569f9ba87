/* Weight vectors of one element type: find the mean, then take the step while the vector is in cache.
 * Included after rules.h and sums.h with the same R and NAME. */

/* ---- runs in and out: half precision goes through a float32 buffer, the rest is used where it lies */

#define IN_PLACE (sizeof(R) == sizeof(double) || t->dtype == F32)

static R *NAME(load)(const tensor_t *t, int operand, int64_t at, int64_t n, R *buffer) {
    char *data = t->data[operand];
    if (!data) return NULL;
    if (IN_PLACE) return (R *)data + at;
    if (t->dtype == BF16)
        widen_bf16((int)n, (uint16_t *)data + at, (float *)buffer);
    else
        widen_f16((int)n, (uint16_t *)data + at, (float *)buffer);
    return buffer;
}

static void NAME(store)(const tensor_t *t, int operand, int64_t at, int64_t n, const R *values) {
    if (IN_PLACE || !t->data[operand]) return;
    uint16_t *data = (uint16_t *)t->data[operand] + at;
    if (t->dtype == BF16)
        narrow_bf16((int)n, (const float *)values, data);
    else
        narrow_f16((int)n, (const float *)values, data);
}

/* ---- what is done to a run */

static void NAME(apply)(const rule_t *rule, const tensor_t *t, const NAME(numbers) *k, int64_t at, int64_t n,
                        const R *high, const R *low, int broad) {
    R buffer[OPERANDS][BLOCK];
    NAME(run_t) r = {.g = NAME(load)(t, GRAD, at, n, buffer[GRAD]), .high = high, .low = low, .broad = broad};
    if (rule->op == CENTRALIZE) {
        R *to = IN_PLACE ? (R *)t->data[STATE] + at : buffer[STATE];
        NAME(centre)(n, to, r.g, high, low, broad);
        NAME(store)(t, STATE, at, n, to);
        return;
    }
    r.w = NAME(load)(t, PARAM, at, n, buffer[PARAM]);
    r.m = NAME(load)(t, STATE, at, n, buffer[STATE]);
    r.v = NAME(load)(t, STATE2, at, n, buffer[STATE2]);
    (rule->update && t->centred ? NAME(settle) : NAME(step))(rule, k, n, &r);
    NAME(store)(t, PARAM, at, n, r.w);
    NAME(store)(t, STATE, at, n, r.m);
    NAME(store)(t, STATE2, at, n, r.v);
}

/* First half of centralizing the update: the change of the weight, into out. */
static void NAME(foresee)(const rule_t *rule, const tensor_t *t, const NAME(numbers) *k, int64_t at, int64_t n,
                          R *out) {
    R buffer[OPERANDS][BLOCK];
    NAME(run_t) r = {.g = NAME(load)(t, GRAD, at, n, buffer[GRAD]), .out = out, .broad = 1};
    r.w = NAME(load)(t, PARAM, at, n, buffer[PARAM]);
    r.m = NAME(load)(t, STATE, at, n, buffer[STATE]);
    r.v = NAME(load)(t, STATE2, at, n, buffer[STATE2]);
    NAME(observe)(rule, k, n, &r);
}

/* ---- vectors in long runs, taken one by one */

/* Positions begin..end of the outer * inner elements of a vector, as runs of memory. */
#define RUNS(begin, end)                                                                               \
    const int64_t b_ = vector / t->vectors, v_ = vector % t->vectors;                                  \
    const int64_t most = IN_PLACE && !(job->rule.update && t->centred) ? PIECE : BLOCK;                \
    for (int64_t p = (begin), n, at; n = t->inner - p % t->inner, n = n < (end) - p ? n : (end) - p,   \
                 n = n < most ? n : most,                                                              \
                 at = ((b_ * t->outer + p / t->inner) * t->vectors + v_) * t->inner + p % t->inner,    \
                 p < (end);                                                                            \
         p += n)

#define TINY 0x1p-64 /* what values are multiplied by when their sum overflowed */

static double NAME(sum_piece)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t vector, int64_t begin, int64_t end,
                              int careful, double shift, double scale) {
    const rule_t *rule = &job->rule;
    double total = 0;
    R x[BLOCK], y[BLOCK];
    RUNS(begin, end) {
        if (rule->update) {
            NAME(foresee)(rule, t, k, at, n, x);
            total += NAME(sum_run)(careful, n, x, NULL, 1, 0, shift, scale);
        } else {
            const R *g = NAME(load)(t, GRAD, at, n, x), *w = rule->projected ? NAME(load)(t, PARAM, at, n, y) : NULL;
            total += NAME(sum_run)(careful, n, g, w, (R)rule->sign, (R)rule->decay, shift, scale);
        }
    }
    return total;
}

/* float64 is summed relative to the vector's first element, so that a constant vector leaves exactly 0. */
static double NAME(shift_of)(const job_t *job, const tensor_t *t, int64_t vector) {
    if (sizeof(R) < sizeof(double) || job->rule.update) return 0;
    const int64_t at = (vector / t->vectors * t->outer * t->vectors + vector % t->vectors) * t->inner;
    const R x = (R)job->rule.sign * ((const R *)t->data[GRAD])[at];
    return (double)(job->rule.projected && t->data[PARAM] ? x + (R)job->rule.decay * ((const R *)t->data[PARAM])[at] : x);
}

/* The mean from the sum of a vector's elements, each less `shift`. */
static void NAME(mean_from)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t vector, double total,
                            double shift, R *high, R *low) {
    const int64_t length = t->outer * t->inner;
    double mean = total / (double)length;
    if (!isfinite(mean)) {
        /* The sum of values near the largest may overflow where the mean does not. */
        mean = NAME(sum_piece)(job, t, k, vector, 0, length, 1, 0, TINY) / (double)length / TINY;
        shift = 0;
    }
    NAME(split)(mean, shift, high, low);
}

static void NAME(mean_of_long)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t vector, const double *partial,
                               R *high, R *low) {
    const int64_t length = t->outer * t->inner, pieces = (length + PIECE - 1) / PIECE;
    double total = 0, shift = NAME(shift_of)(job, t, vector);
    for (int64_t q = 0; q < pieces; q++) {
        int64_t end = (q + 1) * PIECE < length ? (q + 1) * PIECE : length;
        total += partial ? partial[q] : NAME(sum_piece)(job, t, k, vector, q * PIECE, end, CAREFUL, shift, 1);
    }
    NAME(mean_from)(job, t, k, vector, total, shift, high, low);
}

static void NAME(step_piece)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t vector, int64_t begin, int64_t end,
                             R high, R low) {
    RUNS(begin, end) NAME(apply)(&job->rule, t, k, at, n, &high, &low, 1);
}

/* Rows take their steps one after the other, where they lie: meanwhile the next one is summed, so that memory is
 * asked for all operands all the time and not for some of them by turns. */
static void NAME(rows)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t begin, int64_t end) {
    const rule_t *rule = &job->rule;
    const int64_t length = t->inner;
    const R *w = rule->projected ? (const R *)t->data[PARAM] : NULL; /* a step has one */
    double shift = NAME(shift_of)(job, t, begin), total;
    total = NAME(sum_run)(CAREFUL, length, (const R *)t->data[GRAD] + begin * length, w ? w + begin * length : NULL,
                          (R)rule->sign, (R)rule->decay, shift, 1);
    for (int64_t vector = begin; vector < end; vector++) {
        const int64_t at = vector * length, next = at + length;
        R high, low;
        NAME(mean_from)(job, t, k, vector, total, shift, &high, &low);
        if (vector + 1 == end) {
            NAME(apply)(rule, t, k, at, length, &high, &low, 1);
            return;
        }
        shift = NAME(shift_of)(job, t, vector + 1);
        NAME(run_t) r = {.w = (R *)t->data[PARAM] + at, .g = (R *)t->data[GRAD] + at, .high = &high, .low = &low, .broad = 1};
        if (t->data[STATE]) r.m = (R *)t->data[STATE] + at;
        if (t->data[STATE2]) r.v = (R *)t->data[STATE2] + at;
        total = NAME(march)(rule, k, length, &r, r.g + length, w ? w + next : NULL, shift);
    }
}

/* ---- vectors in short runs: a panel of neighbours, whose elements lie side by side in memory */

/* The same mean for the n elements of a run. Whole registers are written, up to seven elements too
 * many: the next run, or the spare end of the arrays, is there to take them. */
ALWAYS void NAME(put)(int n, R a, R b, R *high, R *low) {
    const NAME(r8) wide_a = a - (NAME(r8)){0}, wide_b = b - (NAME(r8)){0};
    for (int i = 0; i < n; i += 8) {
        *(NAME(r8) *)(high + i) = wide_a;
        *(NAME(r8) *)(low + i) = wide_b;
    }
}

static void NAME(spread)(int n, double mean, double base, R *high, R *low) {
    R a, b;
    NAME(split)(mean, base, &a, &b);
    NAME(put)(n, a, b, high, low);
}

static void NAME(panel_means)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t start, int count, double scale,
                              R *high, R *low) {
    const rule_t *rule = &job->rule;
    const int inner = (int)t->inner, n = count * inner;
    double sums[BLOCK], shift[BLOCK];
    R x[BLOCK], y[BLOCK];
    for (int j = 0; j < n; j++) sums[j] = shift[j] = 0;
    for (int64_t o = 0; o < t->outer; o++) {
        const int64_t at = start + o * t->vectors * t->inner;
        if (rule->update) {
            NAME(foresee)(rule, t, k, at, n, x);
            NAME(accumulate_panel)(n, x, NULL, 1, 0, sums, shift, scale);
            continue;
        }
        const R *g = NAME(load)(t, GRAD, at, n, x), *w = rule->projected ? NAME(load)(t, PARAM, at, n, y) : NULL;
        if (sizeof(R) == sizeof(double) && o == 0 && scale == 1)
            for (int j = 0; j < n; j++) {
                const int f = j - j % inner;
                shift[j] = (double)(w ? (R)rule->sign * g[f] + (R)rule->decay * w[f] : (R)rule->sign * g[f]);
            }
        NAME(accumulate_panel)(n, g, w, (R)rule->sign, (R)rule->decay, sums, shift, scale);
    }
    for (int q = 0; q < count; q++) {
        double total = 0;
        for (int i = 0; i < inner; i++) total += sums[q * inner + i];
        NAME(spread)(inner, total / (double)(t->outer * t->inner) / scale, shift[q * inner], high + q * inner,
                     low + q * inner);
    }
}

/* Whole short rows, one after the other, so that a panel is one run of memory. Returns whether all means are
 * finite. All sums, then all means: no row waits for the division of the one before. */
ALWAYS int NAME(row_means)(int count, int inner, const R *g, const R *w, R sign, R decay, R *high, R *low) {
    double sums[BLOCK], shift[BLOCK];
    int bad = 0;
    for (int q = 0; q < count; q++) {
        const int at = q * inner;
        shift[q] = !CAREFUL ? 0 : (double)(w ? sign * g[at] + decay * w[at] : sign * g[at]);
        sums[q] = NAME(sum_run)(CAREFUL, inner, g + at, w ? w + at : NULL, sign, decay, shift[q], 1);
    }
    for (int q = 0; q < count; q++) {
        const double mean = sums[q] / (double)inner;
        high[q] = (R)(shift[q] + mean);
        low[q] = (R)((shift[q] - (double)high[q]) + mean);
    }
    for (int q = 0; q < count; q++) bad |= high[q] - high[q] != 0; /* nan, unless finite */
    return !bad;
}

static void NAME(rows_panel)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t start, int count) {
    const rule_t *rule = &job->rule;
    const R sign = rule->update ? 1 : (R)rule->sign, decay = (R)rule->decay;
    const int inner = (int)t->inner, n = count * inner;
    R x[BLOCK], y[BLOCK], a[BLOCK], b[BLOCK], high[BLOCK + 8], low[BLOCK + 8];
    const R *g = x, *w = NULL;
    if (rule->update) {
        NAME(foresee)(rule, t, k, start, n, x);
    } else {
        g = NAME(load)(t, GRAD, start, n, x);
        w = rule->projected ? NAME(load)(t, PARAM, start, n, y) : NULL;
    }
    const int finite = NAME(row_means)(count, inner, g, w, sign, decay, a, b);
    if (finite && IN_PLACE && inner % 8 == 0 && inner >= ROW && rule->op != CENTRALIZE && !rule->update) {
        NAME(run_t) r = {.g = g, .high = a, .low = b, .w = (R *)t->data[PARAM] + start};
        if (t->data[STATE]) r.m = (R *)t->data[STATE] + start;
        if (t->data[STATE2]) r.v = (R *)t->data[STATE2] + start;
        NAME(step_rows)(rule, k, count, inner, &r);
        return;
    }
    for (int q = 0; q < count; q++) {
        const int at = q * inner;
        if (isfinite((double)a[q])) {
            NAME(put)(inner, a[q], b[q], high + at, low + at);
        } else { /* overflow, perhaps: once more, carefully */
            double mean = NAME(sum_run)(1, inner, g + at, w ? w + at : NULL, sign, decay, 0, TINY) / (double)inner / TINY;
            NAME(spread)(inner, mean, 0, high + at, low + at);
        }
    }
    NAME(apply)(rule, t, k, start, n, high, low, 0);
}

static void NAME(panel)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t vector, int count) {
    const int n = count * (int)t->inner;
    const int64_t start = (vector / t->vectors * t->outer * t->vectors + vector % t->vectors) * t->inner;
    if (t->outer == 1) {
        NAME(rows_panel)(job, t, k, start, count);
        return;
    }
    R high[BLOCK + 8], low[BLOCK + 8];
    NAME(panel_means)(job, t, k, start, count, 1, high, low);
    int finite = !CAREFUL;
    for (int j = 0; j < n && !finite; j++) finite = !isfinite((double)high[j]) ? -1 : 0;
    if (finite < 0) NAME(panel_means)(job, t, k, start, count, TINY, high, low);
    for (int64_t o = 0; o < t->outer; o++)
        NAME(apply)(&job->rule, t, k, start + o * t->vectors * t->inner, n, high, low, 0);
}

/* ---- tasks */

static void NAME(run_flat)(const job_t *job, const task_t *task, const tensor_t *t,
                           const NAME(numbers) *k) {
    const R zero = 0;
    R buffer[BLOCK];
    const int64_t most = IN_PLACE ? PIECE : BLOCK;
    for (int64_t at = task->begin; at < task->end; at += most) {
        int64_t n = task->end - at < most ? task->end - at : most;
        if (task->kind == FLAT) {
            NAME(apply)(&job->rule, t, k, at, n, &zero, &zero, 1);
        } else {
            R *g = NAME(load)(t, GRAD, at, n, buffer);
            for (int64_t i = 0; i < n; i++) g[i] = g[i] / (R)job->rule.unscale;
            NAME(store)(t, GRAD, at, n, g);
        }
    }
}

static void NAME(run_piece)(const job_t *job, const task_t *task, const tensor_t *t,
                           const NAME(numbers) *k) {
    const int64_t length = t->outer * t->inner, pieces = (length + PIECE - 1) / PIECE, vector = task->begin;
    const int64_t begin = task->end * PIECE, end = begin + PIECE < length ? begin + PIECE : length;
    double *partial = job->partial + t->partial + vector * (pieces + 2); /* sums, then the mean */
    if (task->kind == PIECE_SUM) {
        partial[task->end] = NAME(sum_piece)(job, t, k, vector, begin, end, CAREFUL, NAME(shift_of)(job, t, vector), 1);
    } else if (task->kind == PIECE_MEAN) {
        R high, low;
        NAME(mean_of_long)(job, t, k, vector, partial, &high, &low);
        partial[pieces] = (double)high;
        partial[pieces + 1] = (double)low;
    } else {
        NAME(step_piece)(job, t, k, vector, begin, end, (R)partial[pieces], (R)partial[pieces + 1]);
    }
}
