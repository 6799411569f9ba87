/* Sums of x = sign g + decay w, for one element type (R, NAME). A sum of equal values must come out
 * exact, for then a constant vector leaves exactly 0.
 *
 * float32: eight values are added as a tree in float32 (c + c = 2c, 2c + 2c = 4c … are exact), and the
 * result in double. Where that overflows (values near the largest) it is done again with `scale`, which
 * brings every value into double first. float64, which has no wider type, is summed relative to a first
 * element (`shift`) and, where that overflows, scaled down instead. */

/* Eight running sums, always the same eight whatever the width of the machine's registers. */
typedef double NAME(d4) __attribute__((vector_size(32)));
typedef double NAME(sums4) __attribute__((vector_size(32), aligned(sizeof(double)), may_alias));
typedef R NAME(r4) __attribute__((vector_size(4 * sizeof(R))));
typedef R NAME(r8) __attribute__((vector_size(8 * sizeof(R)), aligned(sizeof(R)), may_alias));

#define CAREFUL (sizeof(R) == sizeof(double))
#define EIGHT(from, at) (*(const NAME(r8) *)((from) + (at)))
#define FORM(at) NAME(form)(coupled, g + (at), w + (at), decay)

ALWAYS NAME(r8) NAME(form)(const int coupled, const R *g, const R *w, R decay) {
    NAME(r8) x = EIGHT(g, 0);
    if (coupled) x = x + decay * EIGHT(w, 0);
    return x;
}

/* 64 of them, added to eight as a tree. */
ALWAYS NAME(r8) NAME(tree)(const int coupled, const R *g, const R *w, R decay) {
    return ((FORM(0) + FORM(8)) + (FORM(16) + FORM(24))) + ((FORM(32) + FORM(40)) + (FORM(48) + FORM(56)));
}

/* Of g + decay w; the sign is the caller's. */
ALWAYS double NAME(sum_loop)(const int coupled, const int careful, int64_t n, const R *g, const R *w, R decay,
                             double shift, double scale) {
    NAME(d4) low = {0}, high = {0};
    double rest = 0;
    int64_t i = 0;
    for (; !careful && i + 64 <= n; i += 64) {
        NAME(r8) x = NAME(tree)(coupled, g + i, w + i, decay);
        low += WIDEN(x, 0);
        high += WIDEN(x, 4);
    }
    for (; i + 8 <= n; i += 8) {
        NAME(r8) x = FORM(i);
        low += careful ? WIDEN(x, 0) * scale - shift : WIDEN(x, 0);
        high += careful ? WIDEN(x, 4) * scale - shift : WIDEN(x, 4);
    }
    for (; i < n; i++) {
        R x = g[i];
        if (coupled) x = x + decay * w[i];
        rest += careful ? (double)x * scale - shift : (double)x;
    }
    low += high;
    return ((low[0] + low[2]) + (low[1] + low[3])) + rest;
}

/* w == NULL: no decay. As sign is 1 or -1, sign g + decay w = sign (g + sign decay w), to the bit. */
ALWAYS double NAME(sum_run)(int careful, int64_t n, const R *g, const R *w, R sign, R decay, double shift, double scale) {
    double sum;
    decay = sign * decay;
    shift = (double)sign * shift;
    if (careful)
        sum = w ? NAME(sum_loop)(1, 1, n, g, w, decay, shift, scale) : NAME(sum_loop)(0, 1, n, g, g, decay, shift, scale);
    else
        sum = w ? NAME(sum_loop)(1, 0, n, g, w, decay, shift, scale) : NAME(sum_loop)(0, 0, n, g, g, decay, shift, scale);
    return (double)sign * sum;
}

/* A stretch of a row, added to eight sums. */
ALWAYS void NAME(add_stretch)(const int coupled, const R *g, const R *w, R decay, double shift, NAME(d4) *low, NAME(d4) *high) {
    if (CAREFUL) {
        for (int j = 0; j < STRETCH; j += 8) {
            NAME(r8) x = FORM(j);
            *low += WIDEN(x, 0) - shift;
            *high += WIDEN(x, 4) - shift;
        }
    } else {
        NAME(r8) x = NAME(tree)(coupled, g, w, decay);
        *low += WIDEN(x, 0);
        *high += WIDEN(x, 4);
    }
}

/* The eight sums of all stretches together, and what is left of the row behind them. */
ALWAYS double NAME(add_up)(const int coupled, int64_t n, const R *g, const R *w, R decay, double shift, NAME(d4) low,
                           NAME(d4) high) {
    double rest = NAME(sum_loop)(coupled, CAREFUL, n, g, w, decay, shift, 1);
    low += high;
    return ((low[0] + low[2]) + (low[1] + low[3])) + rest;
}

/* One row takes its step while the next one, g and w, is summed: a stretch of this, a stretch of that, few
 * enough elements to be under way at the same time. Returns the sum. */
ALWAYS double NAME(march_loop)(const int projected, int64_t n, const NAME(numbers) k, const NAME(run_t) *r, const R *g,
                               const R *w, double shift, const int kind, const int decay) {
    const R strength = k.sign * k.decay;
    NAME(d4) low = {0}, high = {0};
    int64_t i = 0;
    for (; i + STRETCH <= n; i += STRETCH) {
        NAME(ask)(g + i);
        NAME(ask)(projected ? w + i : r->w + i); /* this row's weights are in cache if they have been summed */
        NAME(ask_for_states)(kind, r, i);
        NAME(add_stretch)(projected, g + i, w + i, strength, shift, &low, &high);
        NAME(stretch)(kind, decay, 1, STRETCH, k, r, i);
    }
    NAME(stretch)(kind, decay, 1, n - i, k, r, i);
    return NAME(add_up)(projected, n - i, g + i, w + i, strength, shift, low, high) * (double)k.sign;
}

static double NAME(march)(const rule_t *rule, const NAME(numbers) *k, int64_t n, const NAME(run_t) *r, const R *g,
                          const R *w, double shift) {
    shift = (double)k->sign * shift;
#define MARCH(projected, kind, decay) return NAME(march_loop)(projected, n, *k, r, g, w, shift, kind, decay)
    const int projected = w != NULL;
    if (!projected) w = g; /* moved along with g, not read */
    if (projected) EACH_KIND(MARCH, r->m, 1);
    EACH_KIND(MARCH, r->m, 0);
#undef MARCH
}

/* The same, one sum for each element of the run: rows of a panel are added up. */
static void NAME(accumulate_panel)(int n, const R *restrict g, const R *restrict w, R sign, R decay,
                                   double *restrict sums, const double *restrict shift, double scale) {
    if (sizeof(R) == sizeof(double)) {
        for (int j = 0; j < n; j++) sums[j] += (double)(w ? sign * g[j] + decay * w[j] : sign * g[j]) * scale - shift[j];
    } else if (w) {
        for (int j = 0; j < n; j++) sums[j] += (double)(sign * g[j] + decay * w[j]);
    } else {
        for (int j = 0; j < n; j++) sums[j] += (double)(sign * g[j]);
    }
}

/* Four rows at a time, `far` apart, as a tree in R (exact for equal values), then added to the sums in double. */
ALWAYS void NAME(add_four_loop)(const int coupled, int64_t n, int64_t far, const R *g, const R *w, R sign, R decay,
                                double *sums) {
    int64_t j = 0;
    for (; j + 8 <= n; j += 8) {
        for (int q = 0; q < 4 && j * sizeof(R) % 64 == 0; q++) { /* farther ahead, for little is done with a line */
            __builtin_prefetch((const char *)(g + j + q * far) + AHEAD + 128);
            if (coupled) __builtin_prefetch((const char *)(w + j + q * far) + AHEAD + 128);
        }
        NAME(r8) x = sign * ((FORM(j) + FORM(j + far)) + (FORM(j + 2 * far) + FORM(j + 3 * far)));
        *(NAME(sums4) *)(sums + j) += WIDEN(x, 0);
        *(NAME(sums4) *)(sums + j + 4) += WIDEN(x, 4);
    }
    for (; j < n; j++) {
        R x[4];
        for (int q = 0; q < 4; q++) x[q] = coupled ? g[j + q * far] + decay * w[j + q * far] : g[j + q * far];
        sums[j] += (double)(sign * ((x[0] + x[1]) + (x[2] + x[3])));
    }
}

static void NAME(add_four)(int64_t n, int64_t far, const R *g, const R *w, R sign, R decay, double *sums) {
    if (w)
        NAME(add_four_loop)(1, n, far, g, w, sign, sign * decay, sums);
    else
        NAME(add_four_loop)(0, n, far, g, g, sign, decay, sums);
}

/* mean = high + low, to twice the precision of R. A mean that is not finite has no second part, so that
 * it spreads as x - mean would. */
static void NAME(split)(double mean, double base, R *high, R *low) {
    double sum = base + mean;
    *high = (R)sum;
    *low = isfinite((double)*high) ? (R)((base - (double)*high) + mean) : 0;
}
