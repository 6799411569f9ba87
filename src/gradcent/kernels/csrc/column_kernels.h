/* Large tensors whose weight vectors are columns (weights stored as (in, out), transposed convolutions). Column by
 * column, every row would be another page of memory; so the rows are read in memory order, in three stages: the sums
 * of every column over fixed chunks of rows, the means, the step. A band of columns goes through the stages at a time,
 * which bounds the memory for the sums. Included after row_kernels.h with the same R and NAME. */

/* The rows of one chunk. */
static void NAME(chunk_rows)(const tensor_t *t, int64_t chunk, int64_t *begin, int64_t *end) {
    const int64_t rows = (t->outer + t->chunks - 1) / t->chunks;
    *begin = chunk * rows < t->outer ? chunk * rows : t->outer;
    *end = *begin + rows < t->outer ? *begin + rows : t->outer;
}

/* The position of the band's first element in the row `o` of its batch. */
static int64_t NAME(band_start)(const tensor_t *t, const band_t *band, int64_t o) {
    return (band->batch * t->outer + o) * t->vectors * t->inner + band->first;
}

/* Add n elements of one row, beginning at `at`, to the sums. */
static void NAME(add_part)(const rule_t *rule, const tensor_t *t, const NAME(constants) *k, int64_t at, int n, double *sums,
                           const double *shift) {
    R x[BLOCK], y[BLOCK];
    if (rule->update) {
        NAME(compute_update)(rule, t, k, at, n, x);
        NAME(add_row)(n, x, NULL, 1, 0, sums, shift, 1);
    } else {
        const R *g = NAME(load)(t, GRAD, at, n, x), *w = rule->projected ? NAME(load)(t, PARAM, at, n, y) : NULL;
        NAME(add_row)(n, g, w, (R)rule->sign, (R)rule->decay, sums, shift, 1);
    }
}

static void NAME(column_sums)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(constants) *k) {
    const rule_t *rule = &job->rule;
    const band_t *band = &job->bands[task->column.band];
    const int64_t row = t->vectors * t->inner, width = band->width;
    double *sums = job->partial + band->sums + task->column.chunk * width, shift[BLOCK] = {0};
    int64_t o, last;
    NAME(chunk_rows)(t, task->column.chunk, &o, &last);
    for (int64_t j = 0; j < width; j++) sums[j] = 0;
    if (IN_PLACE && !IS_DOUBLE && !rule->update) {
        /* From four places of the chunk: four streams of reads get more from memory than one. */
        const int64_t quarter = (last - o) / 4;
        for (int64_t at = NAME(band_start)(t, band, o), end = at + quarter * row; at < end; at += row)
            NAME(add_four)(width, quarter * row, (const R *)t->data[GRAD] + at,
                           rule->projected && t->data[PARAM] ? (const R *)t->data[PARAM] + at : NULL, (R)rule->sign,
                           (R)rule->decay, sums);
        o += 4 * quarter;
    }
    if (!IS_DOUBLE || rule->update) {
        for (; o < last; o++)
            for (int64_t j = 0; j < width; j += BLOCK)
                NAME(add_part)(rule, t, k, NAME(band_start)(t, band, o) + j, (int)(width - j < BLOCK ? width - j : BLOCK),
                               sums + j, shift);
        return;
    }
    for (int64_t j = 0; j < width; j += BLOCK) { /* a shift for each column, computed once for each block */
        const int n = (int)(width - j < BLOCK ? width - j : BLOCK);
        for (int i = 0; i < n; i++)
            shift[i] = NAME(shift_of)(job, t, band->batch * t->vectors + (band->first + j + i) / t->inner);
        for (int64_t p = o; p < last; p++)
            NAME(add_part)(rule, t, k, NAME(band_start)(t, band, p) + j, n, sums + j, shift);
    }
}

/* The means of one block of columns, from the sums of all chunks. */
static void NAME(column_means)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(constants) *k) {
    const band_t *band = &job->bands[task->column.band];
    const int64_t width = band->width, step = BLOCK / t->inner * t->inner, start = task->column.chunk * step;
    const int64_t end = start + step < width ? start + step : width;
    double *sums = job->partial + band->sums;
    R *mean_high = (R *)(sums + t->chunks * width), *mean_low = (R *)(sums + (t->chunks + 1) * width);
    for (int64_t c = 1; c < t->chunks; c++) /* into the first, in memory order */
        for (int64_t j = start; j < end; j++) sums[j] += sums[c * width + j];
    for (int64_t j = start; j < end; j += t->inner) {
        const int64_t vector = band->batch * t->vectors + (band->first + j) / t->inner;
        double total = 0;
        for (int64_t i = 0; i < t->inner; i++) total += sums[j + i];
        R high[SHORT + 8], low[SHORT + 8];
        NAME(split)(total / (double)(t->outer * t->inner), NAME(shift_of)(job, t, vector), high, low);
        if (IS_DOUBLE && !isfinite((double)high[0])) /* perhaps the sum overflowed */
            NAME(panel_means)(job, t, k, NAME(band_start)(t, band, 0) + j, 1, TINY, high, low);
        for (int64_t i = 0; i < t->inner; i++) mean_high[j + i] = high[0], mean_low[j + i] = low[0];
    }
}

static void NAME(column_step)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(constants) *k) {
    const band_t *band = &job->bands[task->column.band];
    const int64_t row = t->vectors * t->inner, width = band->width, most = IN_PLACE ? PIECE : BLOCK;
    const double *means = job->partial + band->sums + t->chunks * width;
    const R *high = (const R *)means, *low = (const R *)(means + width);
    int64_t o, last;
    NAME(chunk_rows)(t, task->column.chunk, &o, &last);
    if (IN_PLACE && job->rule.op == CENTRALIZE) { /* from four places, as they were summed */
        const int64_t quarter = (last - o) / 4;
        for (int64_t at = NAME(band_start)(t, band, o), end = at + quarter * row; at < end; at += row)
            for (int64_t j = 0; j < width; j += STRIP)
                for (int q = 0; q < 4; q++) {
                    const int64_t from = at + q * quarter * row + j, n = width - j < STRIP ? width - j : STRIP;
                    NAME(subtract_mean)(n, (R *)t->data[OUT] + from, (const R *)t->data[GRAD] + from, high + j, low + j, 0);
                }
        o += 4 * quarter;
    }
    for (; o < last; o++)
        for (int64_t j = 0; j < width; j += most)
            NAME(apply)(&job->rule, t, k, NAME(band_start)(t, band, o) + j, width - j < most ? width - j : most, high + j,
                        low + j, 0);
}
