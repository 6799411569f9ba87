/* Runs of memory: load a run of each operand, step or centralize it, store it. Half precision goes through a float32
 * buffer; float32 and float64 are used in place. Included after update_rules.h and reduce.h with the same R and NAME. */

#define IN_PLACE (sizeof(R) == sizeof(double) || t->dtype == F32)

static R *NAME(load)(const tensor_t *t, int operand, int64_t at, int64_t n, R *buffer) {
    char *data = t->data[operand];
    if (!data) return NULL;
    if (IN_PLACE) return (R *)data + at;
    if (t->dtype == BF16)
        widen_bf16((int)n, (uint16_t *)data + at, (float *)buffer);
    else
        widen_f16((int)n, (uint16_t *)data + at, (float *)buffer);
    return buffer;
}

static void NAME(store)(const tensor_t *t, int operand, int64_t at, int64_t n, const R *values) {
    if (IN_PLACE || !t->data[operand]) return;
    uint16_t *data = (uint16_t *)t->data[operand] + at;
    if (t->dtype == BF16)
        narrow_bf16((int)n, (const float *)values, data);
    else
        narrow_f16((int)n, (const float *)values, data);
}

/* Step (or centralize) the n elements from `at` on, with their mean or means. */
static void NAME(apply)(const rule_t *rule, const tensor_t *t, const NAME(constants) *k, int64_t at, int64_t n,
                        const R *high, const R *low, int shared_mean) {
    R buffer[OPERANDS][BLOCK];
    NAME(run_t) r = {.g = NAME(load)(t, GRAD, at, n, buffer[GRAD]), .high = high, .low = low, .shared_mean = shared_mean};
    if (rule->op == CENTRALIZE) {
        R *to = IN_PLACE ? (R *)t->data[OUT] + at : buffer[OUT];
        NAME(subtract_mean)(n, to, r.g, high, low, shared_mean);
        NAME(store)(t, OUT, at, n, to);
        return;
    }
    r.w = NAME(load)(t, PARAM, at, n, buffer[PARAM]);
    r.m = NAME(load)(t, STATE, at, n, buffer[STATE]);
    r.v = NAME(load)(t, STATE2, at, n, buffer[STATE2]);
    (rule->update && t->centralized ? NAME(apply_update) : NAME(step))(rule, k, n, &r);
    NAME(store)(t, PARAM, at, n, r.w);
    NAME(store)(t, STATE, at, n, r.m);
    NAME(store)(t, STATE2, at, n, r.v);
}

/* The change of the weight that the step would make, into `out`. */
static void NAME(compute_update)(const rule_t *rule, const tensor_t *t, const NAME(constants) *k, int64_t at,
                                 int64_t n, R *out) {
    R buffer[OPERANDS][BLOCK];
    NAME(run_t) r = {.g = NAME(load)(t, GRAD, at, n, buffer[GRAD]), .out = out, .shared_mean = 1};
    r.w = NAME(load)(t, PARAM, at, n, buffer[PARAM]);
    r.m = NAME(load)(t, STATE, at, n, buffer[STATE]);
    r.v = NAME(load)(t, STATE2, at, n, buffer[STATE2]);
    NAME(dry_run)(rule, k, n, &r);
}
