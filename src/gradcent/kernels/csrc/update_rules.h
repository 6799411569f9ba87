/* The optimizers' arithmetic on a run of elements, for one element type: R is float or double, NAME(x) gives x its
 * suffix. One loop does everything to an element; its flags are constants where it is instantiated, and the compiler
 * vectorizes what is left. Contraction to FMA is off, so all instruction sets and all block borders give the same
 * bits. */

/* The constants of a rule for one tensor, in the type they are used in. */
typedef struct {
    R sign, decay, rate, shrink;
    R momentum, undamped, ahead; /* m = momentum m + undamped x;  d = rate m, or rate (x + ahead m) */
    R blend, beta2, rest, unbias, eps;
} NAME(constants);

static NAME(constants) NAME(constants_of)(const rule_t *rule, const tensor_t *t) {
    NAME(constants) k = {
        .sign = (R)rule->sign,
        .decay = (R)rule->decay,
        .rate = (R)-t->rate,
        .shrink = (R)rule->shrink,
        /* A new buffer is zeros, and becomes x whatever the dampening is. */
        .momentum = t->new_buffer ? 0 : (R)rule->momentum,
        .undamped = t->new_buffer ? 1 : (R)rule->undamped,
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
 * DRY_RUN and APPLY are the two halves of centralizing the update: DRY_RUN computes the change of the weight and
 * writes nothing else; APPLY computes it again, from the same values, and applies P to it. */
enum { NAME(STEP), NAME(DRY_RUN), NAME(APPLY) };
enum { NAME(NO_DECAY), NAME(COUPLED), NAME(DECOUPLED) };
enum { NAME(PLAIN), NAME(MOMENTUM), NAME(NESTEROV), NAME(ADAM_RULE), NAME(ADAGRAD_RULE) };

INLINE void NAME(loop)(const int mode, const int kind, const int decay, const int shared_mean, int64_t n,
                       const NAME(constants) k, R *restrict w, const R *restrict g, R *restrict m, R *restrict v,
                       const R *restrict high, const R *restrict low, R *restrict out) {
    /* The mean comes in two parts, so that subtracting it costs one rounding and not two; it is one for
     * the whole run (shared_mean) or one for each element. */
    const int one = shared_mean && mode != NAME(DRY_RUN);
    const R high0 = one ? high[0] : 0, low0 = one ? low[0] : 0;
    for (int64_t i = 0; i < n; i++) {
        const R a = shared_mean ? high0 : high[i], b = shared_mean ? low0 : low[i], old = w[i];
        R d, x = k.sign * g[i];
        if (decay == NAME(COUPLED)) x = x + k.decay * old;
        if (mode == NAME(STEP)) x = (x - a) - b;
        if (kind == NAME(PLAIN)) {
            d = k.rate * x;
        } else if (kind == NAME(MOMENTUM) || kind == NAME(NESTEROV)) {
            const R first = k.momentum * m[i] + k.undamped * x;
            if (mode != NAME(DRY_RUN)) m[i] = first;
            d = k.rate * (kind == NAME(NESTEROV) ? x + k.ahead * first : first);
        } else if (kind == NAME(ADAM_RULE)) {
            const R first = m[i] + k.blend * (x - m[i]), second = k.beta2 * v[i] + k.rest * x * x;
            if (mode != NAME(DRY_RUN)) m[i] = first, v[i] = second;
            d = k.rate * first / (SQRT(second) * k.unbias + k.eps);
        } else {
            const R sum = m[i] + x * x;
            if (mode != NAME(DRY_RUN)) m[i] = sum;
            d = k.rate * x / (SQRT(sum) + k.eps);
        }
        if (decay == NAME(DECOUPLED)) d = d - k.shrink * old;
        if (mode == NAME(APPLY)) d = (d - a) - b;
        if (mode == NAME(DRY_RUN))
            out[i] = d;
        else
            w[i] = old + d;
    }
}

typedef struct {
    R *w, *m, *v, *out;
    const R *g, *high, *low;
    int shared_mean;
} NAME(run_t);

/* Call a macro with the rule's kind and decay as constants, behind the other arguments. */
#define FOR_DECAY(macro, ...)                                                   \
    do {                                                                         \
        if (rule->coupled)                                                       \
            macro(__VA_ARGS__, NAME(COUPLED));                                   \
        else if (rule->shrink != 0)                                              \
            macro(__VA_ARGS__, NAME(DECOUPLED));                                 \
        else                                                                     \
            macro(__VA_ARGS__, NAME(NO_DECAY));                                  \
    } while (0)
#define FOR_RULE(macro, state, ...)                                             \
    do {                                                                         \
        if (rule->op == ADAM)                                                    \
            FOR_DECAY(macro, __VA_ARGS__, NAME(ADAM_RULE));                     \
        else if (rule->op == ADAGRAD)                                            \
            FOR_DECAY(macro, __VA_ARGS__, NAME(ADAGRAD_RULE));                  \
        else if ((state) && rule->nesterov)                                      \
            FOR_DECAY(macro, __VA_ARGS__, NAME(NESTEROV));                      \
        else if (state)                                                          \
            FOR_DECAY(macro, __VA_ARGS__, NAME(MOMENTUM));                      \
        else                                                                     \
            FOR_DECAY(macro, __VA_ARGS__, NAME(PLAIN));                         \
    } while (0)

/* Long runs are processed a strip at a time, and each strip prefetches what comes PREFETCH_BYTES later: with the
 * processor's own prefetching alone a step is some percent slower. (A prefetch behind the end of a run reaches the next
 * row or has no effect.) */
#define STRIP 64
#define PREFETCH_BYTES 256

INLINE void NAME(prefetch)(const R *from) {
    for (int at = 0; at < STRIP * (int)sizeof(R); at += 64) __builtin_prefetch((const char *)from + PREFETCH_BYTES + at);
}

#define STATES(kind) ((kind) == NAME(PLAIN) ? 0 : (kind) == NAME(ADAM_RULE) ? 2 : 1)

/* Elements i to i + n of a run. */
INLINE void NAME(step_strip)(const int kind, const int decay, const int shared_mean, int64_t n, const NAME(constants) k,
                          const NAME(run_t) *r, int64_t i) {
    NAME(loop)(NAME(STEP), kind, decay, shared_mean, n, k, r->w + i, r->g + i, STATES(kind) > 0 ? r->m + i : NULL,
               STATES(kind) > 1 ? r->v + i : NULL, r->high + (shared_mean ? 0 : i), r->low + (shared_mean ? 0 : i), NULL);
}

INLINE void NAME(prefetch_states)(const int kind, const NAME(run_t) *r, int64_t i) {
    if (STATES(kind) > 0) NAME(prefetch)(r->m + i);
    if (STATES(kind) > 1) NAME(prefetch)(r->v + i);
}

INLINE void NAME(strips)(const int kind, const int decay, const int shared_mean, int64_t n, const NAME(constants) k,
                            const NAME(run_t) *r) {
    int64_t i = 0;
    for (; i + STRIP <= n; i += STRIP) {
        NAME(prefetch)(r->g + i);
        NAME(prefetch)(r->w + i);
        NAME(prefetch_states)(kind, r, i);
        NAME(step_strip)(kind, decay, shared_mean, STRIP, k, r, i);
    }
    NAME(step_strip)(kind, decay, shared_mean, n - i, k, r, i);
}

#define LOOP(shared_mean, kind, decay) NAME(strips)(kind, decay, shared_mean, n, *k, r)
static void NAME(step)(const rule_t *rule, const NAME(constants) *k, int64_t n, const NAME(run_t) *r) {
    if (r->shared_mean)
        FOR_RULE(LOOP, r->m, 1);
    else
        FOR_RULE(LOOP, r->m, 0);
}
#undef LOOP

#define LOOP(mode, kind, decay)                                                                          \
    do {                                                                                                 \
        if (r->shared_mean)                                                                                    \
            NAME(loop)(mode, kind, decay, 1, n, *k, r->w, r->g, r->m, r->v, r->high, r->low, r->out);    \
        else                                                                                             \
            NAME(loop)(mode, kind, decay, 0, n, *k, r->w, r->g, r->m, r->v, r->high, r->low, r->out);    \
    } while (0)
#define ALL_RULES(name, mode)                                                                            \
    static void NAME(name)(const rule_t *rule, const NAME(constants) *k, int64_t n, const NAME(run_t) *r) { \
        FOR_RULE(LOOP, r->m, mode);                                                                     \
    }

ALL_RULES(dry_run, NAME(DRY_RUN))
ALL_RULES(apply_update, NAME(APPLY))

#undef LOOP
#undef ALL_RULES

/* A step of `rows` contiguous short rows of n elements, each with its own mean. */
#define LOOP(mode, kind, decay)                                                                                  \
    for (int64_t q = 0, i = 0; q < rows; q++, i += n)                                                            \
    NAME(loop)(mode, kind, decay, 1, n, *k, r->w + i, r->g + i, STATES(kind) > 0 ? r->m + i : NULL,              \
               STATES(kind) > 1 ? r->v + i : NULL, r->high + q, r->low + q, NULL)
static void NAME(step_rows)(const rule_t *rule, const NAME(constants) *k, int64_t rows, int64_t n, const NAME(run_t) *r) {
    FOR_RULE(LOOP, r->m, NAME(STEP));
}
#undef LOOP

/* t - mean without a step. Decay enters the mean only: the caller adds it to the gradient. */
INLINE void NAME(subtract_in_place)(int64_t n, R *restrict to, const R *restrict high, const R *restrict low, const int shared_mean) {
    const R a = shared_mean ? high[0] : 0, b = shared_mean ? low[0] : 0;
    if (shared_mean)
        for (int64_t i = 0; i < n; i++) to[i] = (to[i] - a) - b;
    else
        for (int64_t i = 0; i < n; i++) to[i] = (to[i] - high[i]) - low[i];
}

INLINE void NAME(subtract_mean)(int64_t n, R *restrict to, const R *from, const R *restrict high, const R *restrict low,
                         const int shared_mean) {
    const R a = shared_mean ? high[0] : 0, b = shared_mean ? low[0] : 0;
    if (to == from)
        NAME(subtract_in_place)(n, to, high, low, shared_mean);
    else if (shared_mean)
        for (int64_t i = 0; i < n; i++) to[i] = (from[i] - a) - b;
    else
        for (int64_t i = 0; i < n; i++) to[i] = (from[i] - high[i]) - low[i];
}
