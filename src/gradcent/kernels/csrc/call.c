/* What every call does: read the numbers of its rule, advance the step counters, run. */
#include <math.h>
#include <stdlib.h>

#include "call.h"

static void set_decay(rule_t *rule, double lr, double weight_decay, int decoupled, int projected) {
    rule->projected = projected && weight_decay != 0 && !decoupled;
    rule->coupled = weight_decay != 0 && !decoupled;
    rule->decay = rule->coupled ? weight_decay : 0;
    rule->shrink = decoupled ? lr * weight_decay : 0;
}

static int read_numbers(call_t *call, int op, PyObject *numbers) {
    rule_t *rule = &call->job.rule;
    double weight_decay = 0, dampening = 0;
    int decoupled = 0, projected = 1, maximize = 0, good;
    if (op == CENTRALIZE)
        good = PyArg_ParseTuple(numbers, "di", &weight_decay, &call->threads);
    else if (op == SGD)
        good = PyArg_ParseTuple(numbers, "dddpdppppdi", &call->lr, &rule->momentum, &dampening, &rule->nesterov,
                                &weight_decay, &decoupled, &projected, &maximize, &rule->update, &rule->unscale, &call->threads);
    else if (op == ADAM)
        good = PyArg_ParseTuple(numbers, "dddddppppdi", &call->lr, &rule->beta1, &rule->beta2, &rule->eps, &weight_decay,
                                &decoupled, &projected, &maximize, &rule->update, &rule->unscale, &call->threads);
    else
        good = PyArg_ParseTuple(numbers, "ddddppppdi", &call->lr, &call->lr_decay, &rule->eps, &weight_decay, &decoupled,
                                &projected, &maximize, &rule->update, &rule->unscale, &call->threads);
    rule->op = op;
    rule->sign = maximize ? -1 : 1;
    rule->keep = 1 - dampening;
    set_decay(rule, call->lr, weight_decay, decoupled, projected);
    return good ? 0 : -1;
}

int gradcent_state_count(const rule_t *rule) {
    return rule->op == ADAM ? 2 : rule->op == ADAGRAD ? 1 : rule->op == SGD && rule->momentum != 0;
}

int gradcent_begin(call_t *call, int op, PyObject *numbers, Py_ssize_t count) {
    *call = (call_t){0};
    if (read_numbers(call, op, numbers)) return -1;
    call->job.tensor_count = count;
    call->job.tensors = calloc((size_t)count + 1, sizeof *call->job.tensors);
    const int counted = op == ADAM || op == ADAGRAD;
    if (counted) {
        call->counters = malloc(((size_t)count + 1) * sizeof *call->counters);
        call->counter_types = malloc((size_t)count + 1);
    }
    if (call->job.tensors && (!counted || (call->counters && call->counter_types))) return 0;
    PyErr_NoMemory();
    return -1;
}

void gradcent_end(call_t *call) {
    free(call->counters);
    free(call->counter_types);
    free(call->job.tensors);
}

static double advance(const call_t *call, int64_t k, int by) {
    if (call->counter_types[k] == F64) return *(double *)call->counters[k] += by;
    return *(float *)call->counters[k] += (float)by;
}

static void take_back(const call_t *call) {
    for (int64_t k = 0; k < call->job.tensor_count && call->counters; k++)
        if (call->job.tensors[k].first != LEFT_OUT) advance(call, k, -1);
}

/* Per-tensor rates from the step counters, which are incremented once everything has been checked. */
static void set_rates(call_t *call) {
    const rule_t *rule = &call->job.rule;
    double last = -1, rate = 0, correction = 0; /* pow() only when the count differs from the tensor before */
    for (int64_t k = 0; k < call->job.tensor_count; k++) {
        tensor_t *t = &call->job.tensors[k];
        if (t->first == LEFT_OUT) continue; /* whoever handles it counts its step */
        double step = call->counters ? advance(call, k, 1) : 0;
        if (step != last) {
            last = step;
            rate = call->lr;
            if (rule->op == ADAM) {
                rate = call->lr / (1 - pow(rule->beta1, step));
                correction = sqrt(1 - pow(rule->beta2, step));
            } else if (rule->op == ADAGRAD) {
                rate = call->lr / (1 + (step - 1) * call->lr_decay);
            }
        }
        t->rate = rate;
        t->correction = correction;
    }
}

int gradcent_finish(call_t *call, int release) {
    set_rates(call);
    PyThreadState *thread = release ? PyEval_SaveThread() : NULL;
    int failed = gradcent_execute(&call->job, call->threads);
    if (release) PyEval_RestoreThread(thread);
    if (failed) {
        take_back(call);
        PyErr_NoMemory();
    }
    return failed ? -1 : 0;
}
