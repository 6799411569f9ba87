/* Weight vectors in short runs of memory: a panel of neighbours at a time, whose elements lie side by side. Included
 * after row_kernels.h with the same R and NAME. */

/* The same mean for the n elements of a run. Whole registers are written, up to seven elements too many: into the
 * next run, or into the spare end of the arrays. */
INLINE void NAME(fill)(int n, R a, R b, R *high, R *low) {
    const NAME(r8) wide_a = a - (NAME(r8)){0}, wide_b = b - (NAME(r8)){0};
    for (int i = 0; i < n; i += 8) {
        *(NAME(r8) *)(high + i) = wide_a;
        *(NAME(r8) *)(low + i) = wide_b;
    }
}

static void NAME(set_mean)(int n, double mean, double base, R *high, R *low) {
    R a, b;
    NAME(split)(mean, base, &a, &b);
    NAME(fill)(n, a, b, high, low);
}

static void NAME(panel_means)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t start,
                              int count, double scale, R *high, R *low) {
    const rule_t *rule = &job->rule;
    const int inner = (int)t->inner, n = count * inner;
    double sums[BLOCK], shift[BLOCK];
    R x[BLOCK], y[BLOCK];
    for (int j = 0; j < n; j++) sums[j] = shift[j] = 0;
    for (int64_t o = 0; o < t->outer; o++) {
        const int64_t at = start + o * t->vectors * t->inner;
        if (rule->update) {
            NAME(compute_update)(rule, t, k, at, n, x);
            NAME(add_row)(n, x, NULL, 1, 0, sums, shift, scale);
            continue;
        }
        const R *g = NAME(load)(t, GRAD, at, n, x), *w = rule->projected ? NAME(load)(t, PARAM, at, n, y) : NULL;
        if (IS_DOUBLE && o == 0 && scale == 1)
            for (int j = 0; j < n; j++) {
                const int f = j - j % inner;
                shift[j] = (double)(w ? (R)rule->sign * g[f] + (R)rule->decay * w[f] : (R)rule->sign * g[f]);
            }
        NAME(add_row)(n, g, w, (R)rule->sign, (R)rule->decay, sums, shift, scale);
    }
    for (int q = 0; q < count; q++) {
        double total = 0;
        for (int i = 0; i < inner; i++) total += sums[q * inner + i];
        NAME(set_mean)(inner, total / (double)(t->outer * t->inner) / scale, shift[q * inner], high + q * inner,
                     low + q * inner);
    }
}

/* The means of contiguous short rows. Returns whether all are finite. All sums come before all means, so that no row
 * waits for the division of the one before. */
INLINE int NAME(row_means)(int count, int inner, const R *g, const R *w, R sign, R decay, R *high, R *low) {
    double sums[BLOCK], shift[BLOCK];
    int bad = 0;
    for (int q = 0; q < count; q++) {
        const int at = q * inner;
        shift[q] = !IS_DOUBLE ? 0 : (double)(w ? sign * g[at] + decay * w[at] : sign * g[at]);
        sums[q] = NAME(sum_run)(inner, g + at, w ? w + at : NULL, sign, decay, shift[q], 1);
    }
    for (int q = 0; q < count; q++) {
        const double mean = sums[q] / (double)inner;
        high[q] = (R)(shift[q] + mean);
        low[q] = (R)((shift[q] - (double)high[q]) + mean);
    }
    for (int q = 0; q < count; q++) bad |= high[q] - high[q] != 0; /* nan, unless finite */
    return !bad;
}

static void NAME(row_panel)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t start, int count) {
    const rule_t *rule = &job->rule;
    const R sign = rule->update ? 1 : (R)rule->sign, decay = (R)rule->decay;
    const int inner = (int)t->inner, n = count * inner;
    R x[BLOCK], y[BLOCK], a[BLOCK], b[BLOCK], high[BLOCK + 8], low[BLOCK + 8];
    const R *g = x, *w = NULL;
    if (rule->update) {
        NAME(compute_update)(rule, t, k, start, n, x);
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
            NAME(fill)(inner, a[q], b[q], high + at, low + at);
        } else { /* perhaps the sum overflowed */
            const double mean = NAME(sum_run)(inner, g + at, w ? w + at : NULL, sign, decay, 0, TINY) / (double)inner / (IS_DOUBLE ? TINY : 1);
            NAME(set_mean)(inner, mean, 0, high + at, low + at);
        }
    }
    NAME(apply)(rule, t, k, start, n, high, low, 0);
}

static void NAME(panel)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t vector, int count) {
    const int n = count * (int)t->inner;
    const int64_t start = (vector / t->vectors * t->outer * t->vectors + vector % t->vectors) * t->inner;
    if (t->outer == 1) {
        NAME(row_panel)(job, t, k, start, count);
        return;
    }
    R high[BLOCK + 8], low[BLOCK + 8];
    NAME(panel_means)(job, t, k, start, count, 1, high, low);
    int finite = 1;
    for (int j = 0; j < n && IS_DOUBLE; j++) finite &= isfinite((double)high[j]) != 0;
    if (!finite) NAME(panel_means)(job, t, k, start, count, TINY, high, low);
    for (int64_t o = 0; o < t->outer; o++)
        NAME(apply)(&job->rule, t, k, start + o * t->vectors * t->inner, n, high, low, 0);
}
