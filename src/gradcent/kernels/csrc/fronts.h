/* Long rows are centred, without a step. Memory is then asked for one operand only, and one stream does not keep it
 * busy (on the machine measured, four give half as much again); so a task begins at FRONTS places far apart and
 * works on them by turns. At each, one row is centred while the next is summed. Included after vectors.h with the
 * same R and NAME. */

#define FRONTS 4

/* `count` rows from each of `fronts` places, the first place at row `begin`. */
ALWAYS void NAME(centre_fronts)(const int fronts, const int projected, const job_t *job, const tensor_t *t,
                                const NAME(numbers) *k, int64_t begin, int64_t count) {
    const int64_t length = t->inner;
    const R strength = k->sign * k->decay;
    const double sign = (double)k->sign;
    const R *g[FRONTS], *w[FRONTS];
    R *to[FRONTS], high[FRONTS], low[FRONTS];
    double total[FRONTS], shift[FRONTS];
    for (int f = 0; f < fronts; f++) {
        const int64_t at = (begin + f * count) * length;
        g[f] = (const R *)t->data[GRAD] + at;
        w[f] = projected ? (const R *)t->data[PARAM] + at : g[f];
        to[f] = (R *)t->data[STATE] + at;
        shift[f] = NAME(shift_of)(job, t, begin + f * count);
        total[f] = NAME(sum_run)(CAREFUL, length, g[f], projected ? w[f] : NULL, k->sign, k->decay, shift[f], 1);
    }
    for (int64_t row = 0; row < count; row++) {
        const int more = row + 1 < count;
        NAME(d4) first[FRONTS], second[FRONTS];
        int64_t i = 0;
        for (int f = 0; f < fronts; f++) {
            NAME(mean_from)(job, t, k, begin + f * count + row, total[f], shift[f], &high[f], &low[f]);
            shift[f] = more ? NAME(shift_of)(job, t, begin + f * count + row + 1) : 0;
            first[f] = second[f] = (NAME(d4)){0};
        }
        for (; i + STRETCH <= length; i += STRETCH)
            for (int f = 0; f < fronts; f++) {
                if (more) {
                    NAME(ask)(g[f] + length + i);
                    if (projected) NAME(ask)(w[f] + length + i);
                    NAME(add_stretch)(projected, g[f] + length + i, w[f] + length + i, strength, sign * shift[f], &first[f],
                                      &second[f]);
                }
                NAME(centre)(STRETCH, to[f] + i, g[f] + i, &high[f], &low[f], 1);
            }
        for (int f = 0; f < fronts; f++) {
            NAME(centre)(length - i, to[f] + i, g[f] + i, &high[f], &low[f], 1);
            g[f] += length, w[f] += length, to[f] += length;
            if (more)
                total[f] = sign * NAME(add_up)(projected, length - i, g[f] + i, w[f] + i, strength, sign * shift[f], first[f],
                                               second[f]);
        }
    }
}

static void NAME(centre_rows)(const job_t *job, const tensor_t *t, const NAME(numbers) *k, int64_t begin, int64_t end) {
    const int64_t count = (end - begin) / FRONTS, rest = begin + FRONTS * count;
    const int projected = job->rule.projected && t->data[PARAM];
    if (count && projected)
        NAME(centre_fronts)(FRONTS, 1, job, t, k, begin, count);
    else if (count)
        NAME(centre_fronts)(FRONTS, 0, job, t, k, begin, count);
    if (rest < end && projected)
        NAME(centre_fronts)(1, 1, job, t, k, rest, end - rest);
    else if (rest < end)
        NAME(centre_fronts)(1, 0, job, t, k, rest, end - rest);
}
