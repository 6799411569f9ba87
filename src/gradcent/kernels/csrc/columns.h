/* Large tensors whose weight vectors are columns (weights stored as (in, out), transposed convolutions).
 * Column by column, or panel by panel, every row would be another page of memory; so the rows are read
 * in the order they lie in, in three stages: sums of every column over fixed chunks of rows, the means,
 * the step. Included after vectors.h with the same R and NAME.
 *
 * partial holds, for each batch: a row of sums for each chunk, then a row each of the means' two parts. */

static void NAME(chunk)(const tensor_t *t, int64_t number, int64_t *begin, int64_t *end) {
    const int64_t rows = (t->outer + t->chunks - 1) / t->chunks;
    *begin = number * rows < t->outer ? number * rows : t->outer;
    *end = *begin + rows < t->outer ? *begin + rows : t->outer;
}

/* n elements of one row, beginning at `at`. */
static void NAME(add_one)(const rule_t *rule, const tensor_t *t, const NAME(numbers) *k, int64_t at, int n, double *sums,
                          const double *shift) {
    R x[BLOCK], y[BLOCK];
    if (rule->update) {
        NAME(foresee)(rule, t, k, at, n, x);
        NAME(accumulate_panel)(n, x, NULL, 1, 0, sums, shift, 1);
    } else {
        const R *g = NAME(load)(t, GRAD, at, n, x), *w = rule->projected ? NAME(load)(t, PARAM, at, n, y) : NULL;
        NAME(accumulate_panel)(n, g, w, (R)rule->sign, (R)rule->decay, sums, shift, 1);
    }
}

static void NAME(column_sums)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(numbers) *k) {
    const rule_t *rule = &job->rule;
    const int64_t row = t->vectors * t->inner, start = task->begin * t->outer * row;
    double *sums = job->partial + t->partial + (task->begin * (t->chunks + 2) + task->end) * row, shift[BLOCK] = {0};
    int64_t o, last;
    NAME(chunk)(t, task->end, &o, &last);
    for (int64_t j = 0; j < row; j++) sums[j] = 0;
    if (IN_PLACE && !CAREFUL && !rule->update) {
        /* From four places of the chunk: memory gives more to four streams than to one that jumps. */
        const int64_t quarter = (last - o) / 4;
        for (int64_t at = start + o * row, end = at + quarter * row; at < end; at += row)
            NAME(add_four)(row, quarter * row, (const R *)t->data[GRAD] + at,
                           rule->projected && t->data[PARAM] ? (const R *)t->data[PARAM] + at : NULL, (R)rule->sign,
                           (R)rule->decay, sums);
        o += 4 * quarter;
    }
    if (!CAREFUL || rule->update) {
        for (; o < last; o++)
            for (int64_t j = 0; j < row; j += BLOCK)
                NAME(add_one)(rule, t, k, start + o * row + j, (int)(row - j < BLOCK ? row - j : BLOCK), sums + j, shift);
        return;
    }
    for (int64_t j = 0; j < row; j += BLOCK) { /* a shift for each column: block by block, found once */
        const int n = (int)(row - j < BLOCK ? row - j : BLOCK);
        for (int i = 0; i < n; i++) shift[i] = NAME(shift_of)(job, t, task->begin * t->vectors + (j + i) / t->inner);
        for (int64_t p = o; p < last; p++) NAME(add_one)(rule, t, k, start + p * row + j, n, sums + j, shift);
    }
}

static void NAME(column_means)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(numbers) *k) {
    const int64_t row = t->vectors * t->inner, b = task->begin / t->vectors, start = task->begin % t->vectors * t->inner;
    const int64_t n = (task->end - task->begin) * t->inner;
    double *sums = job->partial + t->partial + b * (t->chunks + 2) * row + start;
    R *mean_high = (R *)(sums - start + t->chunks * row) + start;
    R *mean_low = (R *)(sums - start + (t->chunks + 1) * row) + start;
    for (int64_t c = 1; c < t->chunks; c++) /* into the first, in the order of memory */
        for (int64_t j = 0; j < n; j++) sums[j] += sums[c * row + j];
    for (int64_t vector = task->begin; vector < task->end; vector++) {
        const int64_t first = (vector - task->begin) * t->inner;
        double total = 0;
        for (int64_t i = 0; i < t->inner; i++) total += sums[first + i];
        R high[SHORT + 8], low[SHORT + 8];
        NAME(split)(total / (double)(t->outer * t->inner), NAME(shift_of)(job, t, vector), high, low);
        if (!isfinite((double)high[0])) /* overflow, perhaps: once more, carefully */
            NAME(panel_means)(job, t, k, b * t->outer * row + start + first, 1, CAREFUL ? TINY : 1, high, low);
        for (int64_t i = 0; i < t->inner; i++) mean_high[first + i] = high[0], mean_low[first + i] = low[0];
    }
}

static void NAME(column_step)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(numbers) *k) {
    const int64_t row = t->vectors * t->inner, most = IN_PLACE ? PIECE : BLOCK;
    const double *means = job->partial + t->partial + (task->begin * (t->chunks + 2) + t->chunks) * row;
    const R *high = (const R *)means, *low = (const R *)(means + row);
    int64_t o, last;
    NAME(chunk)(t, task->end, &o, &last);
    if (IN_PLACE && job->rule.op == CENTRALIZE) { /* from four places, as they were summed */
        const int64_t quarter = (last - o) / 4;
        for (int64_t at = (task->begin * t->outer + o) * row, end = at + quarter * row; at < end; at += row)
            for (int64_t j = 0; j < row; j += STRETCH)
                for (int q = 0; q < 4; q++) {
                    const int64_t from = at + q * quarter * row + j, n = row - j < STRETCH ? row - j : STRETCH;
                    NAME(centre)(n, (R *)t->data[STATE] + from, (const R *)t->data[GRAD] + from, high + j, low + j, 0);
                }
        o += 4 * quarter;
    }
    for (; o < last; o++)
        for (int64_t j = 0; j < row; j += most)
            NAME(apply)(&job->rule, t, k, (task->begin * t->outer + o) * row + j, row - j < most ? row - j : most,
                        high + j, low + j, 0);
}
