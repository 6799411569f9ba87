/* The operands of a tensor put together, and calls given as lists of tensors. */
#include <string.h>

#include "call.h"

PyObject *gradcent_unsupported;
static PyObject *zeros_like, *names[4];

int gradcent_operands_setup(PyObject *make) {
    static const char *const layout_names[4] = {"batch", "outer", "vectors", "inner"};
    for (int k = 0; k < 4; k++)
        if (!names[k] && !(names[k] = PyUnicode_InternFromString(layout_names[k]))) return -1;
    Py_INCREF(make), zeros_like = make;
    return 0;
}

static int refuse(Py_ssize_t index, const char *what) {
    PyErr_Format(gradcent_unsupported, "tensor %zd: %s", index, what);
    return -1;
}

int gradcent_read_layout(PyObject *layout, int64_t out[4]) {
    for (int k = 0; k < 4; k++) {
        PyObject *value = PyObject_GetAttr(layout, names[k]);
        if (!value) return -1;
        out[k] = PyLong_AsLongLong(value);
        Py_DECREF(value);
        if (out[k] < 0) return PyErr_Occurred() ? -1 : refuse(0, "negative layout");
    }
    return 0;
}

/* ---- one tensor */

static int contiguous(const seen_t *seen) {
    int64_t expected = 1;
    for (int d = seen->ndim - 1; d >= 0; d--) {
        if (seen->shape[d] != 1 && seen->strides[d] != expected) return 0;
        expected *= seen->shape[d];
    }
    return 1;
}

static int same_strides(const seen_t *a, const seen_t *b) {
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] > 1 && a->strides[d] != b->strides[d]) return 0;
    return 1;
}

int gradcent_fit(tensor_t *t, const seen_t *seen, const int *there, const int64_t *layout, const char **why) {
    int guide = -1, all_contiguous = 1, aligned = 1; /* the guide is the operand the others must agree with */
    for (int k = 0; k < OPERANDS; k++) {
        if (!there[k]) continue;
        if (seen[k].dtype < 0) {
            *why = "not a dense CPU tensor of float32, float64, bfloat16 or float16 (or a negated view of one)";
            return -1;
        }
        t->data[k] = seen[k].data;
        all_contiguous &= contiguous(&seen[k]);
        if (guide < 0) {
            guide = k;
            continue;
        }
        if (seen[k].dtype != seen[guide].dtype) {
            *why = "parameter, gradient and state differ in dtype";
            return -1;
        }
        if (seen[k].ndim != seen[guide].ndim ||
            memcmp(seen[k].shape, seen[guide].shape, (size_t)seen[k].ndim * sizeof(int64_t))) {
            *why = "parameter, gradient and state differ in shape";
            return -1;
        }
        aligned &= same_strides(&seen[guide], &seen[k]);
    }
    const seen_t *s = &seen[guide];
    t->dtype = (uint8_t)s->dtype;
    t->numel = 1;
    for (int d = 0; d < s->ndim; d++) t->numel *= s->shape[d];
    if (t->numel == 0) return 0;
    t->centred = layout != NULL;
    if (layout && layout[0] * layout[1] * layout[2] * layout[3] != t->numel) {
        *why = "the layout has another number of elements than the tensor";
        return -1;
    }
    if (all_contiguous) {
        t->batch = layout ? layout[0] : 1;
        t->outer = layout ? layout[1] : 1;
        t->vectors = layout ? layout[2] : 1;
        t->inner = layout ? layout[3] : t->numel;
        return 0;
    }
    return !aligned || gradcent_arrange(t, s->ndim, s->shape, s->strides, layout) ? 1 : 0;
}

int gradcent_fit_counter(call_t *call, int64_t index, const seen_t *seen, const char **why) {
    int single = seen->dtype == F32 || seen->dtype == F64;
    for (int d = 0; d < seen->ndim && single; d++) single = seen->shape[d] == 1;
    if (!single) {
        *why = "its step counter is not a single float on the CPU";
        return -1;
    }
    call->counters[index] = seen->data;
    call->counter_types[index] = (uint8_t)seen->dtype;
    return 0;
}

/* ---- lists */

/* The lists of one call; those an operation has no use for are NULL. */
typedef struct {
    PyObject *list[OPERANDS];
    PyObject *counters, *layouts;
    int allocate; /* SGD: the operand whose None entries are to be made, or -1 */
} operands_t;

static int read_one(call_t *call, const operands_t *operands, Py_ssize_t index, const int64_t *layout) {
    seen_t seen[OPERANDS];
    int there[OPERANDS] = {0};
    const char *why;
    for (int k = 0; k < OPERANDS; k++) {
        if (!operands->list[k]) continue;
        PyObject *tensor = PyList_GetItem(operands->list[k], index);
        if (!tensor) return -1;
        if (tensor == Py_None && k == operands->allocate) continue; /* made later, like the parameter */
        if (tensor == Py_None && k == PARAM) continue;              /* centralize without a weight */
        if (gradcent_look(tensor, &seen[k])) return -1;
        there[k] = 1;
    }
    int status = gradcent_fit(&call->job.tensors[index], seen, there, layout, &why);
    if (status < 0) return refuse(index, why);
    if (operands->counters) {
        seen_t counter;
        PyObject *tensor = PyList_GetItem(operands->counters, index);
        if (!tensor || gradcent_look(tensor, &counter)) return -1;
        if (gradcent_fit_counter(call, index, &counter, &why)) return refuse(index, why);
    }
    return status;
}

/* SGD: make the buffers that are missing. An empty tensor gets its empty one, as torch gives it; a tensor
 * that is left out gets its buffer from whoever handles it. */
static int allocate(call_t *call, const operands_t *operands) {
    PyObject *buffers = operands->list[operands->allocate];
    for (Py_ssize_t index = 0; index < call->job.tensor_count; index++) {
        tensor_t *t = &call->job.tensors[index];
        if (t->first == LEFT_OUT || PyList_GetItem(buffers, index) != Py_None) continue;
        PyObject *made = PyObject_CallFunctionObjArgs(zeros_like, PyList_GetItem(operands->list[PARAM], index), NULL);
        seen_t seen;
        if (!made || gradcent_look(made, &seen)) {
            Py_XDECREF(made);
            return -1;
        }
        t->first = NEW_BUFFER;
        t->data[operands->allocate] = seen.data;
        if (PyList_SetItem(buffers, index, made)) return -1;
    }
    return 0;
}

/* The indices left out are appended to `left_out`. -1: exception set, nothing touched. */
static int read_lists(call_t *call, const operands_t *operands, PyObject *left_out) {
    PyObject *last = NULL;
    int64_t layout[4] = {0, 0, 0, 0};
    for (Py_ssize_t index = 0; index < call->job.tensor_count; index++) {
        PyObject *item = PyList_GetItem(operands->layouts, index);
        if (!item) return -1;
        if (item != Py_None && item != last) { /* layers of one shape often share one object */
            if (gradcent_read_layout(item, layout)) return -1;
            last = item;
        }
        int status = read_one(call, operands, index, item == Py_None ? NULL : layout);
        if (status < 0) return -1;
        if (status > 0) {
            call->job.tensors[index].numel = 0;
            call->job.tensors[index].first = LEFT_OUT;
            PyObject *number = PyLong_FromSsize_t(index);
            int failed = !number || PyList_Append(left_out, number);
            Py_XDECREF(number);
            if (failed) return -1;
        }
    }
    return operands->allocate < 0 ? 0 : allocate(call, operands);
}

static int check_list(PyObject **list, Py_ssize_t count) {
    if (*list == Py_None) *list = NULL;
    Py_ssize_t size = *list ? PyList_Size(*list) : count;
    if (size >= 0 && size != count) PyErr_Format(PyExc_ValueError, "%zd tensors, but %zd layouts", size, count);
    return size == count ? 0 : -1;
}

/* (lists, layouts, numbers) -> indices left out; the lists are (out, tensors, weights) to centralize, otherwise
 * parameters, gradients, states and, for rules that count, step counters. */
PyObject *gradcent_lists(int op, PyObject *args) {
    operands_t operands = {.allocate = -1};
    PyObject *lists, *numbers, *left_out = NULL;
    call_t call;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &lists, &PyList_Type, &operands.layouts, &PyTuple_Type, &numbers))
        return NULL;
    const int wanted = op == ADAM ? 5 : op == ADAGRAD ? 4 : 3;
    if (PyTuple_Size(lists) != wanted) {
        PyErr_Format(PyExc_ValueError, "%d lists, but %zd are given", wanted, PyTuple_Size(lists));
        return NULL;
    }
    static const int centralizing[] = {STATE, GRAD, PARAM}, stepping[] = {PARAM, GRAD, STATE, STATE2};
    const int counted = op == ADAM || op == ADAGRAD;
    for (int k = 0; k < wanted - counted; k++)
        operands.list[op == CENTRALIZE ? centralizing[k] : stepping[k]] = PyTuple_GetItem(lists, k);
    if (counted) operands.counters = PyTuple_GetItem(lists, wanted - 1);
    Py_ssize_t count = PyList_Size(operands.layouts);
    int failed = counted && check_list(&operands.counters, count);
    for (int k = 0; k < OPERANDS && !failed; k++) failed = check_list(&operands.list[k], count);
    if (failed) return NULL;
    if (gradcent_begin(&call, op, numbers, count)) {
        gradcent_end(&call);
        return NULL;
    }
    rule_t *rule = &call.job.rule;
    if (op == CENTRALIZE && !rule->coupled) operands.list[PARAM] = NULL;
    if (op == CENTRALIZE && !operands.list[PARAM]) rule->coupled = rule->projected = 0, rule->decay = 0;
    if (op == SGD && !gradcent_state_count(rule)) operands.list[STATE] = NULL;
    if (op == SGD && operands.list[STATE]) operands.allocate = STATE;
    failed = !(left_out = PyList_New(0)) || read_lists(&call, &operands, left_out) || gradcent_finish(&call, 1);
    gradcent_end(&call);
    if (failed) Py_CLEAR(left_out);
    return left_out;
}
