/* Sums of x = sign g + decay w, for one element type (R, NAME). A sum of equal values must come out
 * exact, for then a constant vector leaves exactly 0.
 *
 * float32: eight values are added as a tree in float32 (c + c = 2c, 2c + 2c = 4c … are exact), and the
 * result in double. Where that overflows (values near the largest) it is done again with `scale`, which
 * brings every value into double first. float64, which has no wider type, is summed relative to a first
 * element (`shift`) and, where that overflows, scaled down instead. */

/* Eight running sums, always the same eight whatever the width of the machine's registers. */
typedef double NAME(d4) __attribute__((vector_size(32)));
typedef R NAME(r4) __attribute__((vector_size(4 * sizeof(R))));
typedef R NAME(r8) __attribute__((vector_size(8 * sizeof(R)), aligned(sizeof(R)), may_alias));

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

/* One row takes its step (or is centred) while the next one, g and w, is summed: STRETCH elements of this,
 * STRETCH of that, few enough to be under way at the same time. Returns the sum. */
#define STRETCH 64

ALWAYS void NAME(stretch)(const int kind, const int decay, int64_t n, const NAME(numbers) k, const NAME(run_t) *r,
                          int64_t i) {
    if (kind != NAME(CENTRE))
        NAME(loop)(NAME(STEP), kind, decay, 1, n, k, r->w + i, r->g + i, kind == NAME(PLAIN) ? NULL : r->m + i,
                   kind == NAME(ADAM_RULE) ? r->v + i : NULL, r->high, r->low, NULL);
    else if (r->w == r->g)
        NAME(centre)(n, r->w + i, r->high, r->low, 1);
    else
        NAME(centre_from)(n, r->w + i, r->g + i, r->high, r->low, 1);
}

ALWAYS double NAME(march_loop)(const int projected, int64_t n, const NAME(numbers) k, const NAME(run_t) *r, const R *g,
                               const R *w, double shift, const int kind, const int decay) {
    const R strength = k.sign * k.decay;
    NAME(d4) low = {0}, high = {0};
    int64_t i = 0;
    for (; i + STRETCH <= n; i += STRETCH) {
        if (sizeof(R) == sizeof(double)) {
            for (int j = 0; j < STRETCH; j += 8) {
                NAME(r8) x = NAME(form)(projected, g + i + j, w + i + j, strength);
                low += WIDEN(x, 0) - shift;
                high += WIDEN(x, 4) - shift;
            }
        } else {
            NAME(r8) x = NAME(tree)(projected, g + i, w + i, strength);
            low += WIDEN(x, 0);
            high += WIDEN(x, 4);
        }
        NAME(stretch)(kind, decay, STRETCH, k, r, i);
    }
    double rest = NAME(sum_loop)(projected, sizeof(R) == sizeof(double), n - i, g + i, w + i, strength, shift, 1);
    NAME(stretch)(kind, decay, n - i, k, r, i);
    low += high;
    return (((low[0] + low[2]) + (low[1] + low[3])) + rest) * (double)k.sign;
}

static double NAME(march)(const rule_t *rule, const NAME(numbers) *k, int64_t n, const NAME(run_t) *r, const R *g,
                          const R *w, double shift) {
    shift = (double)k->sign * shift;
#define MARCH(projected, kind, decay) return NAME(march_loop)(projected, n, *k, r, g, w, shift, kind, decay)
    const int projected = w != NULL;
    if (!projected) w = g; /* moved along with g, not read */
    if (rule->op == CENTRALIZE && projected) MARCH(1, NAME(CENTRE), NAME(NO_DECAY));
    if (rule->op == CENTRALIZE) MARCH(0, NAME(CENTRE), NAME(NO_DECAY));
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

/* mean = high + low, to twice the precision of R. A mean that is not finite has no second part, so that
 * it spreads as x - mean would. */
static void NAME(split)(double mean, double base, R *high, R *low) {
    double sum = base + mean;
    *high = (R)sum;
    *low = isfinite((double)*high) ? (R)((base - (double)*high) + mean) : 0;
}

#undef EIGHT
#undef FORM
