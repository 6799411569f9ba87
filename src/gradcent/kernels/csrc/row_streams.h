/* Centralizing long rows, without a step. Only one operand is read then, and one stream of reads does not saturate
 * the memory (on the machine measured, four streams give half as much again); so a task works on STREAMS rows that lie
 * far apart, in turn. In each stream, one row is centralized while the next one is summed. Included after row_kernels.h
 * with the same R and NAME. */

#define STREAMS 4

/* `streams` streams of `count` rows each, the first beginning at row `begin`. */
INLINE void NAME(centralize_streams)(const int streams, const int projected, const job_t *job, const tensor_t *t,
                                const NAME(constants) *k, int64_t begin, int64_t count) {
    const int64_t length = t->inner;
    const R strength = k->sign * k->decay;
    const double sign = (double)k->sign;
    const R *g[STREAMS], *w[STREAMS];
    R *to[STREAMS], high[STREAMS], low[STREAMS];
    double total[STREAMS], shift[STREAMS];
    for (int f = 0; f < streams; f++) {
        const int64_t at = (begin + f * count) * length;
        g[f] = (const R *)t->data[GRAD] + at;
        w[f] = projected ? (const R *)t->data[PARAM] + at : g[f];
        to[f] = (R *)t->data[OUT] + at;
        shift[f] = NAME(shift_of)(job, t, begin + f * count);
        total[f] = NAME(sum_run)(length, g[f], projected ? w[f] : NULL, k->sign, k->decay, shift[f], 1);
    }
    for (int64_t row = 0; row < count; row++) {
        const int more = row + 1 < count;
        NAME(d4) first[STREAMS], second[STREAMS];
        int64_t i = 0;
        for (int f = 0; f < streams; f++) {
            NAME(mean_from)(job, t, k, begin + f * count + row, total[f], shift[f], &high[f], &low[f]);
            shift[f] = more ? NAME(shift_of)(job, t, begin + f * count + row + 1) : 0;
            first[f] = second[f] = (NAME(d4)){0};
        }
        for (; i + STRIP <= length; i += STRIP)
            for (int f = 0; f < streams; f++) {
                if (more) {
                    NAME(prefetch)(g[f] + length + i);
                    if (projected) NAME(prefetch)(w[f] + length + i);
                    NAME(add_strip)(projected, g[f] + length + i, w[f] + length + i, strength, sign * shift[f], 1,
                                    &first[f], &second[f]);
                }
                NAME(subtract_mean)(STRIP, to[f] + i, g[f] + i, &high[f], &low[f], 1);
            }
        for (int f = 0; f < streams; f++) {
            NAME(subtract_mean)(length - i, to[f] + i, g[f] + i, &high[f], &low[f], 1);
            g[f] += length, w[f] += length, to[f] += length;
            if (more)
                total[f] = sign * NAME(add_rest)(projected, length - i, g[f] + i, w[f] + i, strength, sign * shift[f], 1, first[f],
                                                 second[f]);
        }
    }
}

static void NAME(centralize_rows)(const job_t *job, const tensor_t *t, const NAME(constants) *k, int64_t begin, int64_t end) {
    const int64_t count = (end - begin) / STREAMS, rest = begin + STREAMS * count;
    const int projected = job->rule.projected && t->data[PARAM];
    if (count && projected)
        NAME(centralize_streams)(STREAMS, 1, job, t, k, begin, count);
    else if (count)
        NAME(centralize_streams)(STREAMS, 0, job, t, k, begin, count);
    if (rest < end && projected)
        NAME(centralize_streams)(1, 1, job, t, k, rest, end - rest);
    else if (rest < end)
        NAME(centralize_streams)(1, 0, job, t, k, rest, end - rest);
}
