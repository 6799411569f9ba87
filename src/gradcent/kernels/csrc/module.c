/* The Python face of the kernels: one function per operation, each a single call for a whole list. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "operands.h"

static int check_lists(operands_t *operands) {
    Py_ssize_t count = PyList_Size(operands->layouts);
    if (count < 0) return -1;
    for (int k = 0; k < OPERANDS; k++) {
        if (operands->list[k] == Py_None) operands->list[k] = NULL;
        if (!operands->list[k]) continue;
        Py_ssize_t size = PyList_Size(operands->list[k]);
        if (size < 0) return -1;
        if (size != count) {
            PyErr_Format(PyExc_ValueError, "%zd tensors, but %zd layouts", size, count);
            return -1;
        }
    }
    return 0;
}

/* Per-tensor rates from the step counters, which are incremented once everything has been checked. */
typedef struct {
    double lr, lr_decay;
    void **pointers;
    uint8_t *dtypes;
} counters_t;

static double advance(void *pointer, int dtype) {
    if (dtype == F64) return *(double *)pointer += 1;
    return *(float *)pointer += 1;
}

static void set_rates(job_t *job, const counters_t *counters) {
    const rule_t *rule = &job->rule;
    double last = -1, rate = 0, correction = 0; /* pow() only when the count differs from the tensor before */
    for (int64_t k = 0; k < job->tensor_count; k++) {
        tensor_t *t = &job->tensors[k];
        if (t->first == 2) continue; /* left out: whoever handles it counts its step */
        double step = counters->pointers ? advance(counters->pointers[k], counters->dtypes[k]) : 0;
        if (step != last) {
            last = step;
            rate = counters->lr;
            if (rule->op == ADAM) {
                rate = counters->lr / (1 - pow(rule->beta1, step));
                correction = sqrt(1 - pow(rule->beta2, step));
            } else if (rule->op == ADAGRAD) {
                rate = counters->lr / (1 + (step - 1) * counters->lr_decay);
            }
        }
        t->rate = rate;
        t->correction = correction;
    }
}

/* Returns the list of indices left out (usually empty), or NULL with an exception set. */
static PyObject *run(job_t *job, operands_t *operands, double lr, double lr_decay, PyObject *steps, int threads) {
    if (check_lists(operands)) return NULL;
    Py_ssize_t count = PyList_Size(operands->layouts);
    PyObject *left_out = PyList_New(0);
    counters_t counters = {lr, lr_decay, NULL, NULL};
    int failed = !left_out;
    job->tensor_count = count;
    job->partial = NULL;
    job->tensors = calloc((size_t)count + 1, sizeof *job->tensors);
    if (steps) {
        counters.pointers = malloc(((size_t)count + 1) * sizeof *counters.pointers);
        counters.dtypes = malloc((size_t)count + 1);
    }
    if (!job->tensors || (steps && (!counters.pointers || !counters.dtypes))) {
        PyErr_NoMemory();
        failed = 1;
    }
    failed = failed || (steps && gradcent_read_steps(steps, count, counters.pointers, counters.dtypes));
    failed = failed || gradcent_read_operands(job, operands, left_out);
    if (!failed) {
        for (Py_ssize_t k = 0; k < PyList_Size(left_out); k++)
            job->tensors[PyLong_AsSsize_t(PyList_GetItem(left_out, k))].first = 2;
        set_rates(job, &counters);
        Py_BEGIN_ALLOW_THREADS;
        failed = gradcent_execute(job, threads);
        Py_END_ALLOW_THREADS;
        if (failed) PyErr_NoMemory();
    }
    free(counters.pointers);
    free(counters.dtypes);
    free(job->tensors);
    if (failed) Py_CLEAR(left_out);
    return left_out;
}

static void set_decay(rule_t *rule, double lr, double weight_decay, int decoupled, int projected) {
    rule->projected = projected && weight_decay != 0 && !decoupled;
    rule->coupled = weight_decay != 0 && !decoupled;
    rule->decay = rule->coupled ? weight_decay : 0;
    rule->shrink = decoupled ? lr * weight_decay : 0;
}

static PyObject *centralize(PyObject *self, PyObject *args) {
    (void)self;
    operands_t operands = {{NULL}, NULL, -1};
    job_t job = {.rule = {.op = CENTRALIZE, .sign = 1}};
    double decay;
    int threads;
    if (!PyArg_ParseTuple(args, "OOOOdi", &operands.list[STATE], &operands.list[GRAD], &operands.list[PARAM],
                          &operands.layouts, &decay, &threads))
        return NULL;
    if (decay == 0) operands.list[PARAM] = NULL;
    set_decay(&job.rule, 0, operands.list[PARAM] && operands.list[PARAM] != Py_None ? decay : 0, 0, 1);
    return run(&job, &operands, 0, 0, NULL, threads);
}

static PyObject *sgd(PyObject *self, PyObject *args) {
    (void)self;
    operands_t operands = {{NULL}, NULL, STATE};
    job_t job = {.rule = {.op = SGD}};
    double lr, dampening, weight_decay;
    int decoupled, projected, maximize, threads;
    if (!PyArg_ParseTuple(args, "OOOOdddpdppppdi", &operands.list[PARAM], &operands.list[GRAD], &operands.list[STATE],
                          &operands.layouts, &lr, &job.rule.momentum, &dampening, &job.rule.nesterov, &weight_decay,
                          &decoupled, &projected, &maximize, &job.rule.update, &job.rule.unscale, &threads))
        return NULL;
    if (job.rule.momentum == 0) operands.list[STATE] = NULL, operands.allocate = -1;
    job.rule.sign = maximize ? -1 : 1;
    job.rule.keep = 1 - dampening;
    set_decay(&job.rule, lr, weight_decay, decoupled, projected);
    return run(&job, &operands, lr, 0, NULL, threads);
}

static PyObject *adam(PyObject *self, PyObject *args) {
    (void)self;
    operands_t operands = {{NULL}, NULL, -1};
    job_t job = {.rule = {.op = ADAM}};
    PyObject *steps;
    double lr, weight_decay;
    int decoupled, projected, maximize, threads;
    if (!PyArg_ParseTuple(args, "OOOOO!Odddddppppdi", &operands.list[PARAM], &operands.list[GRAD],
                          &operands.list[STATE], &operands.list[STATE2], &PyList_Type, &steps, &operands.layouts, &lr,
                          &job.rule.beta1, &job.rule.beta2, &job.rule.eps, &weight_decay, &decoupled, &projected, &maximize,
                          &job.rule.update, &job.rule.unscale, &threads))
        return NULL;
    job.rule.sign = maximize ? -1 : 1;
    set_decay(&job.rule, lr, weight_decay, decoupled, projected);
    return run(&job, &operands, lr, 0, steps, threads);
}

static PyObject *adagrad(PyObject *self, PyObject *args) {
    (void)self;
    operands_t operands = {{NULL}, NULL, -1};
    job_t job = {.rule = {.op = ADAGRAD}};
    PyObject *steps;
    double lr, lr_decay, weight_decay;
    int decoupled, projected, maximize, threads;
    if (!PyArg_ParseTuple(args, "OOOO!Oddddppppdi", &operands.list[PARAM], &operands.list[GRAD], &operands.list[STATE],
                          &PyList_Type, &steps, &operands.layouts, &lr, &lr_decay, &job.rule.eps, &weight_decay,
                          &decoupled, &projected, &maximize, &job.rule.update, &job.rule.unscale, &threads))
        return NULL;
    job.rule.sign = maximize ? -1 : 1;
    set_decay(&job.rule, lr, weight_decay, decoupled, projected);
    return run(&job, &operands, lr, lr_decay, steps, threads);
}

static PyObject *setup(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *types, *exchange, *describe, *zeros_like;
    unsigned long long entry[5];
    if (!PyArg_ParseTuple(args, "O!OOOKKKKK", &PyTuple_Type, &types, &exchange, &describe, &zeros_like, &entry[0],
                          &entry[1], &entry[2], &entry[3], &entry[4]))
        return NULL;
    if (gradcent_operands_setup(types, exchange, describe, zeros_like)) return NULL;
    gradcent_use_openmp((void *)(uintptr_t)entry[0], (void *)(uintptr_t)entry[1], (void *)(uintptr_t)entry[2],
                        (void *)(uintptr_t)entry[3], (void *)(uintptr_t)entry[4]);
    Py_RETURN_NONE;
}

static PyObject *instruction_set(PyObject *self, PyObject *args) {
    (void)self;
    const char *name = NULL;
    if (!PyArg_ParseTuple(args, "|z", &name)) return NULL;
    if (name && gradcent_choose_engine(name)) {
        PyErr_Format(PyExc_ValueError, "this processor cannot run the %s kernels", name);
        return NULL;
    }
    return PyUnicode_FromString(gradcent_engine()->name);
}

static PyMethodDef methods[] = {
    {"centralize", centralize, METH_VARARGS,
     "centralize(out, tensors, weights, layouts, decay, threads) -> indices left out"},
    {"sgd", sgd, METH_VARARGS, "One step of SGD for a whole list -> indices left out"},
    {"adam", adam, METH_VARARGS, "One step of Adam or AdamW for a whole list -> indices left out"},
    {"adagrad", adagrad, METH_VARARGS, "One step of Adagrad for a whole list -> indices left out"},
    {"collect", gradcent_collect, METH_VARARGS,
     "collect(parameters, states, keys, required, thorough, outputs) -> whether everything was there"},
    {"setup", setup, METH_VARARGS, "Hand over what belongs to torch: types, DLPack's table, OpenMP's entry points"},
    {"instruction_set", instruction_set, METH_VARARGS, "Name the instruction set in use, or choose one"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The native CPU kernels; use gradcent.kernels.native.", -1, methods, NULL, NULL,
    NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    gradcent_unsupported = PyErr_NewException("gradcent.kernels._native.Unsupported", PyExc_TypeError, NULL);
    if (!gradcent_unsupported) return NULL;
    Py_INCREF(gradcent_unsupported);
    if (PyModule_AddObject(module, "Unsupported", gradcent_unsupported)) return NULL;
    return module;
}
