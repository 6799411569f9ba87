/* Sums of x = sign g + decay w, for one element type (R, NAME). The sum of equal values must be exact, so that a
 * constant vector leaves exactly 0.
 *
 * float32 is summed in double: sums are exact for equal values and cannot overflow, and the mean is exact to float32
 * however large it is beside the spread of the values. float64, which has no wider type, is summed relative to the
 * vector's first element (`shift`); where that overflows, it is summed again with the values multiplied by `scale`.
 *
 * There are always the same eight running sums, whatever the width of the machine's registers. */

typedef double NAME(d4) __attribute__((vector_size(32)));
typedef double NAME(sums4) __attribute__((vector_size(32), aligned(sizeof(double)), may_alias));
typedef R NAME(r4) __attribute__((vector_size(4 * sizeof(R))));
typedef R NAME(r8) __attribute__((vector_size(8 * sizeof(R)), aligned(sizeof(R)), may_alias));

#define IS_DOUBLE (sizeof(R) == sizeof(double))
#define LOAD8(from, at) (*(const NAME(r8) *)((from) + (at)))
#define VALUE8(at) NAME(value8)(coupled, g + (at), w + (at), decay)

INLINE NAME(r8) NAME(value8)(const int coupled, const R *g, const R *w, R decay) {
    NAME(r8) x = LOAD8(g, 0);
    if (coupled) x = x + decay * LOAD8(w, 0);
    return x;
}

/* Four of eight values as they are summed. */
#define TERM(x, first) (IS_DOUBLE ? TO_DOUBLE(x, first) * scale - shift : TO_DOUBLE(x, first))

/* Add STRIP elements of g + decay w to the eight sums. */
INLINE void NAME(add_strip)(const int coupled, const R *g, const R *w, R decay, double shift, double scale, NAME(d4) *low,
                            NAME(d4) *high) {
    NAME(d4) a[4], b[4];
    for (int j = 0; j < 4; j++) { /* in pairs, so that fewer additions wait for each other */
        const NAME(r8) x = VALUE8(16 * j), y = VALUE8(16 * j + 8);
        a[j] = TERM(x, 0) + TERM(y, 0);
        b[j] = TERM(x, 4) + TERM(y, 4);
    }
    *low += (a[0] + a[1]) + (a[2] + a[3]);
    *high += (b[0] + b[1]) + (b[2] + b[3]);
}

/* Add the last n elements, fewer than STRIP, and return the total. */
INLINE double NAME(add_rest)(const int coupled, int64_t n, const R *g, const R *w, R decay, double shift, double scale,
                             NAME(d4) low, NAME(d4) high) {
    double rest = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const NAME(r8) x = VALUE8(i);
        low += TERM(x, 0);
        high += TERM(x, 4);
    }
    for (; i < n; i++) {
        const R x = coupled ? g[i] + decay * w[i] : g[i];
        rest += IS_DOUBLE ? (double)x * scale - shift : (double)x;
    }
    low += high;
    return ((low[0] + low[2]) + (low[1] + low[3])) + rest;
}

INLINE double NAME(sum_loop)(const int coupled, int64_t n, const R *g, const R *w, R decay, double shift, double scale) {
    NAME(d4) low = {0}, high = {0};
    int64_t i = 0;
    for (; i + STRIP <= n; i += STRIP) NAME(add_strip)(coupled, g + i, w + i, decay, shift, scale, &low, &high);
    return NAME(add_rest)(coupled, n - i, g + i, w + i, decay, shift, scale, low, high);
}

/* w == NULL: no decay. As sign is 1 or -1, sign g + decay w = sign (g + sign decay w), to the bit. */
INLINE double NAME(sum_run)(int64_t n, const R *g, const R *w, R sign, R decay, double shift, double scale) {
    decay = sign * decay;
    shift = (double)sign * shift;
    return (double)sign * (w ? NAME(sum_loop)(1, n, g, w, decay, shift, scale) : NAME(sum_loop)(0, n, g, g, decay, shift, scale));
}

/* Step one row while the next one (g, w) is summed, a strip of each in turn, few enough elements that the processor
 * works on both at the same time. Returns the sum. */
INLINE double NAME(step_and_sum_loop)(const int projected, int64_t n, const NAME(constants) k, const NAME(run_t) *r,
                                      const R *g, const R *w, double shift, const int kind, const int decay) {
    const R strength = k.sign * k.decay;
    NAME(d4) low = {0}, high = {0};
    int64_t i = 0;
    for (; i + STRIP <= n; i += STRIP) {
        NAME(prefetch)(g + i);
        NAME(prefetch)(projected ? w + i : r->w + i); /* this row's weights are in cache if they were summed */
        NAME(prefetch_states)(kind, r, i);
        NAME(add_strip)(projected, g + i, w + i, strength, shift, 1, &low, &high);
        NAME(step_strip)(kind, decay, 1, STRIP, k, r, i);
    }
    NAME(step_strip)(kind, decay, 1, n - i, k, r, i);
    return NAME(add_rest)(projected, n - i, g + i, w + i, strength, shift, 1, low, high) * (double)k.sign;
}

static double NAME(step_and_sum_next)(const rule_t *rule, const NAME(constants) *k, int64_t n, const NAME(run_t) *r,
                                      const R *g, const R *w, double shift) {
    shift = (double)k->sign * shift;
#define STEP_AND_SUM(projected, kind, decay) return NAME(step_and_sum_loop)(projected, n, *k, r, g, w, shift, kind, decay)
    const int projected = w != NULL;
    if (!projected) w = g; /* advanced with g, not read */
    if (projected) FOR_RULE(STEP_AND_SUM, r->m, 1);
    FOR_RULE(STEP_AND_SUM, r->m, 0);
#undef STEP_AND_SUM
}

/* One sum for each element of the run: the rows of a panel are added up. */
static void NAME(add_row)(int n, const R *restrict g, const R *restrict w, R sign, R decay, double *restrict sums,
                          const double *restrict shift, double scale) {
    if (IS_DOUBLE) {
        for (int j = 0; j < n; j++) sums[j] += (double)(w ? sign * g[j] + decay * w[j] : sign * g[j]) * scale - shift[j];
    } else if (w) {
        for (int j = 0; j < n; j++) sums[j] += (double)(sign * g[j] + decay * w[j]);
    } else {
        for (int j = 0; j < n; j++) sums[j] += (double)(sign * g[j]);
    }
}

/* Four rows at a time, `distance` elements apart. */
INLINE void NAME(add_four_loop)(const int coupled, int64_t n, int64_t distance, const R *g, const R *w, R sign, R decay,
                                double *sums) {
    const double d_sign = (double)sign;
    int64_t j = 0;
    for (; j + 8 <= n; j += 8) {
        for (int q = 0; q < 4 && j * sizeof(R) % 64 == 0; q++) { /* farther ahead, for little is done with a line */
            __builtin_prefetch((const char *)(g + j + q * distance) + PREFETCH_BYTES + 128);
            if (coupled) __builtin_prefetch((const char *)(w + j + q * distance) + PREFETCH_BYTES + 128);
        }
        const NAME(r8) a = VALUE8(j), b = VALUE8(j + distance), c = VALUE8(j + 2 * distance), d = VALUE8(j + 3 * distance);
        *(NAME(sums4) *)(sums + j) +=
            d_sign * ((TO_DOUBLE(a, 0) + TO_DOUBLE(b, 0)) + (TO_DOUBLE(c, 0) + TO_DOUBLE(d, 0)));
        *(NAME(sums4) *)(sums + j + 4) +=
            d_sign * ((TO_DOUBLE(a, 4) + TO_DOUBLE(b, 4)) + (TO_DOUBLE(c, 4) + TO_DOUBLE(d, 4)));
    }
    for (; j < n; j++) {
        double x[4];
        for (int q = 0; q < 4; q++) x[q] = (double)(coupled ? g[j + q * distance] + decay * w[j + q * distance] : g[j + q * distance]);
        sums[j] += d_sign * ((x[0] + x[1]) + (x[2] + x[3]));
    }
}

static void NAME(add_four)(int64_t n, int64_t distance, const R *g, const R *w, R sign, R decay, double *sums) {
    if (w)
        NAME(add_four_loop)(1, n, distance, g, w, sign, sign * decay, sums);
    else
        NAME(add_four_loop)(0, n, distance, g, g, sign, decay, sums);
}

/* mean = high + low, to twice the precision of R. A mean that is not finite has no second part, so that x - mean is
 * not finite either. */
static void NAME(split)(double mean, double base, R *high, R *low) {
    double sum = base + mean;
    *high = (R)sum;
    *low = isfinite((double)*high) ? (R)((base - (double)*high) + mean) : 0;
}
