/* The arithmetic of a run of elements, for one element type: R is float or double, NAME(x) gives x its
 * suffix. One loop does all there is to do to an element; the flags are constants where the loop is
 * instantiated, and the compiler vectorizes what is left. Contraction to FMA is off, so all instruction
 * sets and all block borders give the same bits. */

#define ALWAYS static inline __attribute__((always_inline))

/* The numbers of a rule for one tensor, in the type they are used in. */
typedef struct {
    R sign, decay, rate, shrink;
    R momentum, keep, ahead; /* m = momentum m + keep x;  d = rate m, or rate (x + ahead m) */
    R blend, beta2, rest, unbias, eps;
} NAME(numbers);

static NAME(numbers) NAME(numbers_of)(const rule_t *rule, const tensor_t *t) {
    NAME(numbers) k = {
        .sign = (R)rule->sign,
        .decay = (R)rule->decay,
        .rate = (R)-t->rate,
        .shrink = (R)rule->shrink,
        /* A new buffer is zeros, and becomes x whatever the dampening is. */
        .momentum = t->first ? 0 : (R)rule->momentum,
        .keep = t->first ? 1 : (R)rule->keep,
        .ahead = (R)rule->momentum,
        .blend = (R)(1 - rule->beta1),
        .beta2 = (R)rule->beta2,
        .rest = (R)(1 - rule->beta2),
        .unbias = (R)(1 / t->correction),
        .eps = (R)rule->eps,
    };
    return k;
}

/* STEP: x = P(sign g + decay w), then the optimizer's rule, then the weight.
 * OBSERVE and SETTLE are the two halves of centralizing the update: the first finds the change of the
 * weight and touches nothing; the second finds it again, from the same numbers, and applies P to it. */
enum { NAME(STEP), NAME(OBSERVE), NAME(SETTLE) };
enum { NAME(NO_DECAY), NAME(COUPLED), NAME(DECOUPLED) };
enum { NAME(PLAIN), NAME(MOMENTUM), NAME(NESTEROV), NAME(ADAM_RULE), NAME(ADAGRAD_RULE) };

ALWAYS void NAME(loop)(const int mode, const int kind, const int decay, const int broad, int64_t n,
                       const NAME(numbers) k, R *restrict w, const R *restrict g, R *restrict m, R *restrict v,
                       const R *restrict high, const R *restrict low, R *restrict out) {
    /* The mean comes in two parts, so that subtracting it costs one rounding and not two; it is one for
     * the whole run (broad) or one for each element. */
    const int one = broad && mode != NAME(OBSERVE);
    const R high0 = one ? high[0] : 0, low0 = one ? low[0] : 0;
    for (int64_t i = 0; i < n; i++) {
        const R a = broad ? high0 : high[i], b = broad ? low0 : low[i], old = w[i];
        R d, x = k.sign * g[i];
        if (decay == NAME(COUPLED)) x = x + k.decay * old;
        if (mode == NAME(STEP)) x = (x - a) - b;
        if (kind == NAME(PLAIN)) {
            d = k.rate * x;
        } else if (kind == NAME(MOMENTUM) || kind == NAME(NESTEROV)) {
            const R first = k.momentum * m[i] + k.keep * x;
            if (mode != NAME(OBSERVE)) m[i] = first;
            d = k.rate * (kind == NAME(NESTEROV) ? x + k.ahead * first : first);
        } else if (kind == NAME(ADAM_RULE)) {
            const R first = m[i] + k.blend * (x - m[i]), second = k.beta2 * v[i] + k.rest * x * x;
            if (mode != NAME(OBSERVE)) m[i] = first, v[i] = second;
            d = k.rate * first / (ROOT(second) * k.unbias + k.eps);
        } else {
            const R sum = m[i] + x * x;
            if (mode != NAME(OBSERVE)) m[i] = sum;
            d = k.rate * x / (ROOT(sum) + k.eps);
        }
        if (decay == NAME(DECOUPLED)) d = d - k.shrink * old;
        if (mode == NAME(SETTLE)) d = (d - a) - b;
        if (mode == NAME(OBSERVE))
            out[i] = d;
        else
            w[i] = old + d;
    }
}

typedef struct {
    R *w, *m, *v, *out;
    const R *g, *high, *low;
    int broad;
} NAME(run_t);

/* The constants that a rule stands for, as the last arguments of a macro. */
#define EACH_DECAY(macro, ...)                                                   \
    do {                                                                         \
        if (rule->coupled)                                                       \
            macro(__VA_ARGS__, NAME(COUPLED));                                   \
        else if (rule->shrink != 0)                                              \
            macro(__VA_ARGS__, NAME(DECOUPLED));                                 \
        else                                                                     \
            macro(__VA_ARGS__, NAME(NO_DECAY));                                  \
    } while (0)
#define EACH_KIND(macro, state, ...)                                             \
    do {                                                                         \
        if (rule->op == ADAM)                                                    \
            EACH_DECAY(macro, __VA_ARGS__, NAME(ADAM_RULE));                     \
        else if (rule->op == ADAGRAD)                                            \
            EACH_DECAY(macro, __VA_ARGS__, NAME(ADAGRAD_RULE));                  \
        else if ((state) && rule->nesterov)                                      \
            EACH_DECAY(macro, __VA_ARGS__, NAME(NESTEROV));                      \
        else if (state)                                                          \
            EACH_DECAY(macro, __VA_ARGS__, NAME(MOMENTUM));                      \
        else                                                                     \
            EACH_DECAY(macro, __VA_ARGS__, NAME(PLAIN));                         \
    } while (0)

/* Long runs are worked on a stretch at a time, and memory is asked for what comes AHEAD bytes later: left to
 * guess what is read next, the processor is some percent slower. (Behind the end nothing is asked in vain: the
 * next row lies there, or a prefetch that goes nowhere.) */
#define STRETCH 64
#define AHEAD 256

ALWAYS void NAME(ask)(const R *from) {
    for (int at = 0; at < STRETCH * (int)sizeof(R); at += 64) __builtin_prefetch((const char *)from + AHEAD + at);
}

#define STATES(kind) ((kind) == NAME(PLAIN) ? 0 : (kind) == NAME(ADAM_RULE) ? 2 : 1)

/* Elements i to i + n of a run. */
ALWAYS void NAME(stretch)(const int kind, const int decay, const int broad, int64_t n, const NAME(numbers) k,
                          const NAME(run_t) *r, int64_t i) {
    NAME(loop)(NAME(STEP), kind, decay, broad, n, k, r->w + i, r->g + i, STATES(kind) > 0 ? r->m + i : NULL,
               STATES(kind) > 1 ? r->v + i : NULL, r->high + (broad ? 0 : i), r->low + (broad ? 0 : i), NULL);
}

ALWAYS void NAME(ask_for_states)(const int kind, const NAME(run_t) *r, int64_t i) {
    if (STATES(kind) > 0) NAME(ask)(r->m + i);
    if (STATES(kind) > 1) NAME(ask)(r->v + i);
}

ALWAYS void NAME(stretches)(const int kind, const int decay, const int broad, int64_t n, const NAME(numbers) k,
                            const NAME(run_t) *r) {
    int64_t i = 0;
    for (; i + STRETCH <= n; i += STRETCH) {
        NAME(ask)(r->g + i);
        NAME(ask)(r->w + i);
        NAME(ask_for_states)(kind, r, i);
        NAME(stretch)(kind, decay, broad, STRETCH, k, r, i);
    }
    NAME(stretch)(kind, decay, broad, n - i, k, r, i);
}

#define LOOP(broad, kind, decay) NAME(stretches)(kind, decay, broad, n, *k, r)
static void NAME(step)(const rule_t *rule, const NAME(numbers) *k, int64_t n, const NAME(run_t) *r) {
    if (r->broad)
        EACH_KIND(LOOP, r->m, 1);
    else
        EACH_KIND(LOOP, r->m, 0);
}
#undef LOOP

#define LOOP(mode, kind, decay)                                                                          \
    do {                                                                                                 \
        if (r->broad)                                                                                    \
            NAME(loop)(mode, kind, decay, 1, n, *k, r->w, r->g, r->m, r->v, r->high, r->low, r->out);    \
        else                                                                                             \
            NAME(loop)(mode, kind, decay, 0, n, *k, r->w, r->g, r->m, r->v, r->high, r->low, r->out);    \
    } while (0)
#define ALL_RULES(name, mode)                                                                            \
    static void NAME(name)(const rule_t *rule, const NAME(numbers) *k, int64_t n, const NAME(run_t) *r) { \
        EACH_KIND(LOOP, r->m, mode);                                                                     \
    }

ALL_RULES(observe, NAME(OBSERVE))
ALL_RULES(settle, NAME(SETTLE))

#undef LOOP
#undef ALL_RULES

/* A step of `rows` short rows of n elements, one behind the other, each with a mean of its own. */
#define LOOP(mode, kind, decay)                                                                                  \
    for (int64_t q = 0, i = 0; q < rows; q++, i += n)                                                            \
    NAME(loop)(mode, kind, decay, 1, n, *k, r->w + i, r->g + i, STATES(kind) > 0 ? r->m + i : NULL,              \
               STATES(kind) > 1 ? r->v + i : NULL, r->high + q, r->low + q, NULL)
static void NAME(step_rows)(const rule_t *rule, const NAME(numbers) *k, int64_t rows, int64_t n, const NAME(run_t) *r) {
    EACH_KIND(LOOP, r->m, NAME(STEP));
}
#undef LOOP

/* t - mean alone. The decay belongs to the mean only: whoever asked adds it himself. */
ALWAYS void NAME(centre_in_place)(int64_t n, R *restrict to, const R *restrict high, const R *restrict low, const int broad) {
    const R a = broad ? high[0] : 0, b = broad ? low[0] : 0;
    if (broad)
        for (int64_t i = 0; i < n; i++) to[i] = (to[i] - a) - b;
    else
        for (int64_t i = 0; i < n; i++) to[i] = (to[i] - high[i]) - low[i];
}

ALWAYS void NAME(centre)(int64_t n, R *restrict to, const R *from, const R *restrict high, const R *restrict low,
                         const int broad) {
    const R a = broad ? high[0] : 0, b = broad ? low[0] : 0;
    if (to == from)
        NAME(centre_in_place)(n, to, high, low, broad);
    else if (broad)
        for (int64_t i = 0; i < n; i++) to[i] = (from[i] - a) - b;
    else
        for (int64_t i = 0; i < n; i++) to[i] = (from[i] - high[i]) - low[i];
}
