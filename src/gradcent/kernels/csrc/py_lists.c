/* A call given as lists of tensors: centralizing, and steps whose lists torch's `_init_group` collected. */
#include "py_call.h"

static int refuse(Py_ssize_t index, const char *why) {
    PyErr_Format(gradcent_unsupported, "tensor %zd: %s", index, why);
    return -1;
}

/* Hold every tensor of the lists; None is an operand that is not there. -1: exception set. */
static int add_list(call_t *call, int operand, PyObject *list) {
    if (list == Py_None) return 0;
    if (!PyList_Check(list) || PyList_Size(list) != call->job.tensor_count) {
        PyErr_Format(PyExc_ValueError, "expected None or a list of %zd tensors", (Py_ssize_t)call->job.tensor_count);
        return -1;
    }
    for (Py_ssize_t index = 0; index < call->job.tensor_count; index++) {
        PyObject *tensor = PyList_GetItem(list, index);
        if (!tensor) return -1;
        if (tensor == Py_None) continue;
        const int plain = gradcent_add(call, index, operand, tensor);
        if (plain < 0) return -1;
        if (!plain) return refuse(index, "its values are not its memory: a negated view or a tensor with its own dispatch");
    }
    return 0;
}

/* The indices of tensors whose strides the kernels cannot follow are appended to `left_out`. */
static int read_tensors(call_t *call, PyObject *layouts, PyObject *left_out) {
    PyObject *last = NULL;
    int64_t sizes[4] = {0, 0, 0, 0};
    for (Py_ssize_t index = 0; index < call->job.tensor_count; index++) {
        PyObject *layout = PyList_GetItem(layouts, index);
        const char *why;
        if (!layout) return -1;
        if (layout != Py_None && layout != last) { /* layers of one shape often share one object */
            if (gradcent_read_layout(layout, sizes)) return -1;
            last = layout;
        }
        const int status = gradcent_read(call, index, layout == Py_None ? NULL : sizes, &why);
        if (status < 0) return refuse(index, why);
        if (status == 0) continue;
        call->job.tensors[index].numel = 0;
        call->job.tensors[index].skipped = 1;
        PyObject *number = PyLong_FromSsize_t(index);
        const int failed = !number || PyList_Append(left_out, number);
        Py_XDECREF(number);
        if (failed) return -1;
    }
    return 0;
}

static int mark_new_buffers(call_t *call, PyObject *indices) {
    for (Py_ssize_t k = 0; k < PyList_Size(indices); k++) {
        const Py_ssize_t index = PyLong_AsSsize_t(PyList_GetItem(indices, k));
        if (index < 0 || index >= call->job.tensor_count) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "new_buffers: no such tensor");
            return -1;
        }
        call->job.tensors[index].new_buffer = 1;
    }
    return 0;
}

/* step_lists(op, lists, layouts, numbers, new_buffers) -> indices left out, whose strides the kernels cannot follow.
 * The lists are (weights or None, tensors, out) to centralize, otherwise parameters, gradients, states and, for rules
 * that count steps, step counters. new_buffers: indices of momentum buffers that were just created. */
PyObject *gradcent_step_lists(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *lists, *layouts, *numbers, *new_buffers, *left_out = NULL;
    const char *op;
    call_t call;
    if (!PyArg_ParseTuple(args, "sO!O!O!O!", &op, &PyTuple_Type, &lists, &PyList_Type, &layouts, &PyTuple_Type, &numbers,
                          &PyList_Type, &new_buffers))
        return NULL;
    int failed = gradcent_begin(&call, op, numbers, PyList_Size(layouts));
    if (!failed) {
        static const int centralizing[] = {PARAM, GRAD, OUT}, stepping[] = {PARAM, GRAD, STATE, STATE2};
        const int is_step = call.job.rule.op != CENTRALIZE;
        const int operands = is_step ? 2 + gradcent_state_count(&call.job.rule) : 3, wanted = operands + call.counts_steps;
        if (PyTuple_Size(lists) != wanted) {
            PyErr_Format(PyExc_ValueError, "%s takes %d lists, got %zd", op, wanted, PyTuple_Size(lists));
            failed = 1;
        }
        for (int k = 0; k < wanted && !failed; k++)
            failed = add_list(&call, k == operands ? COUNTER : is_step ? stepping[k] : centralizing[k], PyTuple_GetItem(lists, k));
    }
    failed = failed || !(left_out = PyList_New(0)) || read_tensors(&call, layouts, left_out) ||
             mark_new_buffers(&call, new_buffers) || gradcent_run(&call);
    gradcent_end(&call);
    if (failed) Py_CLEAR(left_out);
    return left_out;
}
