/* Drives the kernels over odd sizes, layouts, types and options under the address and undefined-behaviour
 * sanitizers: every operand is a block of its own of exactly its size, so that one element too far is
 * caught. Prints a checksum for each instruction set; they must agree. Run by sanitize.sh. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcent.h"

static const int64_t layouts[][4] = {
    {1, 1, 1, 1},    {1, 1, 3, 7},      {1, 1, 40, 9},   {1, 1, 33, 31},    {1, 1, 17, 64},      {1, 1, 5, 513},
    {1, 37, 53, 1},  {1, 700, 45, 1},   {1, 2000, 3, 1}, {2, 3, 4, 9},      {4, 2, 5, 81},       {3, 8, 20, 1},
    {1, 1, 2, 65537}, {1, 1, 1, 300007}, {1, 2, 2, 131075}, {1, 1, 600, 1},  {1, 1, 1, 262145}, {1, 530, 130, 1}, {2, 15, 70, 35}, {3, 1000, 67, 1},
    {1, 1, 11, 130}, {1, 2051, 131, 1}, {1, 1024, 128, 1}, {1, 3, 30000, 1}, {1, 8, 23001, 1}, {70, 8, 130, 1},
};
static uint64_t state = 1;

static double noise(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) / (double)(1ll << 53) - 0.5;
}

static void put(void *data, int dtype, int64_t i, double value) {
    if (dtype == F32) ((float *)data)[i] = (float)value;
    if (dtype == F64) ((double *)data)[i] = value;
    if (dtype == BF16) {
        float f = (float)value;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    }
    if (dtype == F16) ((uint16_t *)data)[i] = (uint16_t)(0x3800 | ((int)(value * 512) & 0x83ff));
}

static uint64_t mix(uint64_t sum, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ at[i]) * 1099511628211u;
    return sum;
}

/* torch_parallel_for with two threads. */
typedef void (*part_t)(int64_t, int64_t, void *);
struct half { part_t body; void *context; int64_t begin, end; };
static void *run_half(void *data) {
    const struct half *half = data;
    half->body(half->begin, half->end, half->context);
    return NULL;
}
static int32_t two_threads(int64_t begin, int64_t end, int64_t grain, part_t body, void *context) {
    (void)grain;
    const int64_t middle = (begin + end) / 2;
    struct half second = {body, context, middle, end};
    pthread_t other;
    pthread_create(&other, NULL, run_half, &second);
    body(begin, middle, context);
    pthread_join(other, NULL);
    return 0;
}

static const size_t sizes[] = {4, 8, 2, 2};

static tensor_t make(int op, int64_t which, int dtype, int centralized) {
    const int64_t *l = layouts[which], n = l[0] * l[1] * l[2] * l[3];
    const size_t bytes = (size_t)n * sizes[dtype];
    tensor_t t = {.batch = l[0], .outer = l[1], .vectors = l[2], .inner = l[3], .numel = n, .rate = 0.1,
                  .correction = 0.5, .dtype = (uint8_t)dtype, .centralized = (uint8_t)centralized, .new_buffer = (uint8_t)(which % 2)};
    for (int k = 0; k < OPERANDS; k++) {
        if ((k == STATE2 && op != ADAM) || (k == STATE && op == CENTRALIZE) || (k == OUT && op != CENTRALIZE)) continue;
        t.data[k] = malloc(bytes);
        for (int64_t i = 0; i < n; i++) put(t.data[k], dtype, i, k >= STATE && op != SGD ? fabs(noise()) : noise());
    }
    return t;
}

static uint64_t one(int op, int64_t which, int dtype, int centralized, int coupled, int update, int scaled, int special) {
    tensor_t t = make(op, which, dtype, centralized);
    const size_t bytes = (size_t)t.numel * sizes[dtype];
    if (special) put(t.data[GRAD], dtype, t.numel / 2, special == 1 ? NAN : INFINITY);
    job_t job = {.tensors = &t, .tensor_count = 1,
                 .rule = {.op = op, .update = update && op != CENTRALIZE, .nesterov = which % 3 == 0, .coupled = coupled,
                          .projected = coupled, .decay = coupled ? 0.1 : 0, .shrink = coupled ? 0 : 0.01, .sign = 1,
                          .momentum = 0.9, .undamped = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .unscale = scaled ? 4 : 0}};
    if (gradcent_execute(&job, 2)) abort();
    uint64_t sum = 0;
    for (int k = 0; k < OPERANDS; k++) {
        if (t.data[k] && !special) sum = mix(sum, t.data[k], bytes); /* NaN has many bit patterns */
        free(t.data[k]);
    }
    return sum;
}

/* Many tensors in one call, small ones and empty ones between others: the same bits as one by one. */
static int several(int op) {
    enum { TENSORS = 90, KINDS = sizeof layouts / sizeof *layouts };
    tensor_t list[TENSORS], alone[TENSORS];
    rule_t rule = {.op = op, .coupled = 1, .projected = 1, .decay = 0.1, .sign = 1, .momentum = 0.9, .undamped = 1,
                   .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6};
    int different = 0;
    for (int k = 0; k < TENSORS; k++) {
        const uint64_t before = state;
        list[k] = make(op, k * 7 % KINDS, k % 4, k % 5 != 0);
        state = before;
        alone[k] = make(op, k * 7 % KINDS, k % 4, k % 5 != 0);
        if (k % 9 == 4) list[k].numel = alone[k].numel = 0;
        job_t job = {.tensors = &alone[k], .tensor_count = 1, .rule = rule};
        if (gradcent_execute(&job, 1)) abort();
    }
    job_t job = {.tensors = list, .tensor_count = TENSORS, .rule = rule};
    if (gradcent_execute(&job, 2)) abort();
    for (int k = 0; k < TENSORS; k++)
        for (int d = 0; d < OPERANDS; d++) {
            if (list[k].data[d])
                different |= memcmp(list[k].data[d], alone[k].data[d], (size_t)list[k].numel * sizes[list[k].dtype]);
            free(list[k].data[d]);
            free(alone[k].data[d]);
        }
    return different;
}

int main(void) {
    static const char *const names[] = {"sse2", "neon", "baseline", "avx2", "avx512"};
    gradcent_use_threads(two_threads, NULL);
    uint64_t expected = 0;
    int ran = 0;
    for (size_t e = 0; e < sizeof names / sizeof *names; e++) {
        if (gradcent_choose_engine(names[e])) continue;
        uint64_t sum = 0;
        state = 1;
        for (int op = CENTRALIZE; op <= ADAGRAD; op++)
            for (size_t which = 0; which < sizeof layouts / sizeof *layouts; which++)
                for (int dtype = F32; dtype <= F16; dtype++)
                    for (int options = 0; options < 8; options++) {
                        const int64_t *l = layouts[which], n = l[0] * l[1] * l[2] * l[3];
                        if ((n > 100000 && options > 4) || (n > 200000 && options > 2)) continue; /* slow */
                        int centralized = options != 3, coupled = options & 1, update = (options & 2) != 0;
                        sum = sum * 31 + one(op, (int64_t)which, dtype, centralized, coupled, update, options == 4,
                                             options > 5 ? options - 5 : 0);
                    }
        printf("%s %016llx\n", names[e], (unsigned long long)sum);
        if (ran++ && sum != expected) return 1;
        expected = sum;
        for (int op = CENTRALIZE; op <= ADAGRAD; op++)
            if (several(op)) return 6;
    }
    /* orders of memory: channels-last, gaps, an order that is no layout */
    tensor_t t = {.numel = 6 * 4 * 3 * 5};
    const int64_t shape[] = {6, 4, 3, 5}, last[] = {60, 1, 20, 4}, gaps[] = {120, 30, 10, 2}, turned[] = {20, 120, 1, 4};
    const int64_t rows[] = {1, 1, 6, 60}, columns[] = {2, 3, 4, 15};
    if (gradcent_memory_order(&t, 4, shape, last, rows) || t.vectors != 6 || t.inner != 60) return 2;
    if (gradcent_memory_order(&t, 4, shape, last, columns) || t.batch != 2 || t.outer != 45 || t.vectors != 4) return 3;
    if (!gradcent_memory_order(&t, 4, shape, gaps, rows)) return 4;
    gradcent_memory_order(&t, 4, shape, turned, rows);
    puts("orders of memory");
    /* an allocation that fails leaves everything as it was */
    for (int after = 0; after < 2; after++) {
        tensor_t columns = make(SGD, 21, F32, 1);
        const size_t bytes = (size_t)columns.numel * sizeof(float);
        const uint64_t before = mix(mix(0, columns.data[PARAM], bytes), columns.data[STATE], bytes);
        job_t job = {.tensors = &columns, .tensor_count = 1, .rule = {.op = SGD, .sign = 1, .momentum = 0.9, .undamped = 1}};
        gradcent_fail_allocation(after);
        if (!gradcent_execute(&job, 2)) return 7;
        if (mix(mix(0, columns.data[PARAM], bytes), columns.data[STATE], bytes) != before) return 8;
        for (int k = 0; k < OPERANDS; k++) free(columns.data[k]);
    }
    gradcent_fail_allocation(-1);
    puts("failed allocations");
    return ran ? 0 : 5;
}
