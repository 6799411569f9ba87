/* Sums of x = sign g + decay w, for one element type (R, NAME). A sum of equal values must come out
 * exact, for then a constant vector leaves exactly 0.
 *
 * float32: four values are added as a tree in float32 (c + c = 2c and 2c + 2c = 4c are exact), and the
 * result in double. Where that overflows (values near the largest) it is done again with `scale`, which
 * brings every value into double first. float64, which has no wider type, is summed relative to a first
 * element (`shift`) and, where that overflows, scaled down instead. */

/* Eight running sums, always the same eight whatever the width of the machine's registers. */
typedef double NAME(d4) __attribute__((vector_size(32)));
typedef R NAME(r4) __attribute__((vector_size(4 * sizeof(R))));
typedef R NAME(r8) __attribute__((vector_size(8 * sizeof(R)), aligned(sizeof(R)), may_alias));

#define EIGHT(from, at) (*(const NAME(r8) *)((from) + (at)))
#define FORM(at) (coupled ? sign * EIGHT(g, at) + decay * EIGHT(w, at) : sign * EIGHT(g, at))
#define WIDEN(x, first) __builtin_convertvector(PART(NAME(r4), x, first), NAME(d4))

ALWAYS double NAME(sum_loop)(const int coupled, const int careful, int64_t n, const R *g, const R *w, R sign, R decay,
                             double shift, double scale) {
    NAME(d4) low = {0}, high = {0};
    double rest = 0;
    int64_t i = 0;
    for (; !careful && i + 32 <= n; i += 32) {
        NAME(r8) x = (FORM(i) + FORM(i + 8)) + (FORM(i + 16) + FORM(i + 24));
        low += WIDEN(x, 0);
        high += WIDEN(x, 4);
    }
    for (; i + 8 <= n; i += 8) {
        NAME(r8) x = FORM(i);
        low += careful ? WIDEN(x, 0) * scale - shift : WIDEN(x, 0);
        high += careful ? WIDEN(x, 4) * scale - shift : WIDEN(x, 4);
    }
    for (; i < n; i++) {
        R x = sign * g[i];
        if (coupled) x = x + decay * w[i];
        rest += careful ? (double)x * scale - shift : (double)x;
    }
    low += high;
    return ((low[0] + low[2]) + (low[1] + low[3])) + rest;
}

#undef EIGHT
#undef FORM
#undef WIDEN

/* w == NULL: no decay. */
ALWAYS double NAME(sum_run)(int careful, int64_t n, const R *g, const R *w, R sign, R decay, double shift, double scale) {
    if (careful)
        return w ? NAME(sum_loop)(1, 1, n, g, w, sign, decay, shift, scale)
                 : NAME(sum_loop)(0, 1, n, g, g, sign, decay, shift, scale);
    return w ? NAME(sum_loop)(1, 0, n, g, w, sign, decay, shift, scale)
             : NAME(sum_loop)(0, 0, n, g, g, sign, decay, shift, scale);
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
