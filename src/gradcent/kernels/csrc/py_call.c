/* What every call does: read the hyperparameters, hold and read the tensors, advance the step counters, run. */
#include <math.h>
#include <string.h>

#include "py_call.h"

/* Bytes of parameters from which on the GIL is released: smaller steps take a few milliseconds. */
#define LONG_STEP (16 << 20)

PyObject *gradcent_unsupported;
static PyObject *layout_names[4];

/* ---- hyperparameters */

static void set_decay(rule_t *rule, double lr, double weight_decay, int decoupled, int projected) {
    rule->projected = projected && weight_decay != 0 && !decoupled;
    rule->coupled = weight_decay != 0 && !decoupled;
    rule->decay = rule->coupled ? weight_decay : 0;
    rule->shrink = decoupled ? lr * weight_decay : 0;
}

static int read_numbers(call_t *call, const char *op, PyObject *numbers) {
    rule_t *rule = &call->job.rule;
    double weight_decay = 0, dampening = 0;
    int decoupled = 0, projected = 1, maximize = 0, good;
    if (!strcmp(op, "centralize")) {
        rule->op = CENTRALIZE;
        good = PyArg_ParseTuple(numbers, "d", &weight_decay);
    } else if (!strcmp(op, "sgd")) {
        rule->op = SGD;
        good = PyArg_ParseTuple(numbers, "dddpdppppd", &call->lr, &rule->momentum, &dampening, &rule->nesterov,
                                &weight_decay, &decoupled, &projected, &maximize, &rule->update, &rule->unscale);
    } else if (!strcmp(op, "adam")) {
        rule->op = ADAM;
        good = PyArg_ParseTuple(numbers, "dddddppppd", &call->lr, &rule->beta1, &rule->beta2, &rule->eps, &weight_decay,
                                &decoupled, &projected, &maximize, &rule->update, &rule->unscale);
    } else if (!strcmp(op, "adagrad")) {
        rule->op = ADAGRAD;
        good = PyArg_ParseTuple(numbers, "ddddppppd", &call->lr, &call->lr_decay, &rule->eps, &weight_decay, &decoupled,
                                &projected, &maximize, &rule->update, &rule->unscale);
    } else {
        PyErr_Format(PyExc_ValueError, "there is no operation %s", op);
        return -1;
    }
    rule->sign = maximize ? -1 : 1;
    rule->undamped = 1 - dampening;
    set_decay(rule, call->lr, weight_decay, decoupled, projected);
    return good ? 0 : -1;
}

int gradcent_state_count(const rule_t *rule) {
    return rule->op == ADAM ? 2 : rule->op == ADAGRAD ? 1 : rule->op == SGD && rule->momentum != 0;
}

int gradcent_begin(call_t *call, const char *op, PyObject *numbers, Py_ssize_t count) {
    *call = (call_t){0};
    if (read_numbers(call, op, numbers)) return -1;
    call->counts_steps = call->job.rule.op == ADAM || call->job.rule.op == ADAGRAD;
    call->job.tensors = gradcent_allocate((size_t)count * sizeof *call->job.tensors);
    call->objects = gradcent_allocate((size_t)count * OBJECTS * sizeof *call->objects);
    if (call->counts_steps) call->counters = gradcent_allocate((size_t)count * sizeof *call->counters);
    if (call->job.tensors && call->objects && (!call->counts_steps || call->counters)) {
        call->job.tensor_count = count;
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

void gradcent_end(call_t *call) {
    for (Py_ssize_t k = 0; k < call->job.tensor_count * OBJECTS; k++) Py_XDECREF(call->objects[k]);
    gradcent_free(call->objects);
    gradcent_free(call->counters);
    gradcent_free(call->job.tensors);
}

/* ---- tensors */

int gradcent_layout_setup(void) {
    static const char *const names[4] = {"batch", "outer", "vectors", "inner"};
    for (int k = 0; k < 4; k++)
        if (!layout_names[k] && !(layout_names[k] = PyUnicode_InternFromString(names[k]))) return -1;
    return 0;
}

int gradcent_read_layout(PyObject *layout, int64_t out[4]) {
    for (int k = 0; k < 4; k++) {
        PyObject *value = PyObject_GetAttr(layout, layout_names[k]);
        if (!value) return -1;
        out[k] = PyLong_AsLongLong(value);
        Py_DECREF(value);
        if (out[k] < 0) {
            if (!PyErr_Occurred()) PyErr_SetString(gradcent_unsupported, "the layout has a negative size");
            return -1;
        }
    }
    return 0;
}

int gradcent_add(call_t *call, Py_ssize_t index, int operand, PyObject *tensor) {
    Py_INCREF(tensor);
    call->objects[index * OBJECTS + operand] = tensor;
    return operand == GRAD || operand == OUT ? gradcent_is_plain(tensor) : gradcent_has_plain_type(tensor);
}

static int read_counter(counter_t *counter, PyObject *tensor) {
    tensor_view_t view;
    if (gradcent_view(tensor, &view) || (view.dtype != F32 && view.dtype != F64)) return -1;
    for (int d = 0; d < view.ndim; d++)
        if (view.shape[d] != 1) return -1;
    counter->value = view.data;
    counter->dtype = view.dtype;
    return 0;
}

int gradcent_read(call_t *call, Py_ssize_t index, const int64_t *layout, const char **why) {
    tensor_view_t views[OPERANDS];
    int present[OPERANDS];
    PyObject *const *objects = call->objects + index * OBJECTS;
    for (int k = 0; k < OPERANDS; k++) {
        present[k] = objects[k] != NULL;
        if (!present[k] || !gradcent_view(objects[k], &views[k])) continue;
        *why = "not a dense CPU tensor of float32, float64, bfloat16 or float16";
        return -1;
    }
    if (objects[COUNTER] && read_counter(&call->counters[index], objects[COUNTER])) {
        *why = "its step counter is not a single float on the CPU";
        return -1;
    }
    return gradcent_combine(&call->job.tensors[index], views, present, layout, why);
}

/* ---- step counters */

static double advance(const counter_t *counter, int by) {
    if (counter->dtype == F64) return *(double *)counter->value += by;
    return *(float *)counter->value += (float)by;
}

/* The learning rates of all tensors from their step counters, which are incremented. */
static void set_rates(call_t *call) {
    const rule_t *rule = &call->job.rule;
    double last = -1, rate = 0, correction = 0; /* pow() only if the count differs from the tensor before */
    for (int64_t k = 0; k < call->job.tensor_count; k++) {
        tensor_t *t = &call->job.tensors[k];
        if (t->skipped) continue;
        const double step = call->counts_steps ? advance(&call->counters[k], 1) : 0;
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

static void restore_counters(call_t *call) {
    for (int64_t k = 0; k < call->job.tensor_count && call->counts_steps; k++)
        if (!call->job.tensors[k].skipped) advance(&call->counters[k], -1);
}

int gradcent_run(call_t *call) {
    int64_t bytes = 0;
    for (int64_t k = 0; k < call->job.tensor_count; k++) {
        const tensor_t *t = &call->job.tensors[k];
        bytes += t->numel * (t->dtype == F64 ? 8 : t->dtype == F32 ? 4 : 2);
    }
    set_rates(call);
    const int threads = gradcent_thread_count();
    /* Every tensor is held, so other Python threads may run meanwhile. */
    PyThreadState *thread = bytes >= LONG_STEP ? PyEval_SaveThread() : NULL;
    const int failed = gradcent_execute(&call->job, threads);
    if (thread) PyEval_RestoreThread(thread);
    if (failed) {
        restore_counters(call);
        PyErr_NoMemory();
    }
    return failed ? -1 : 0;
}
