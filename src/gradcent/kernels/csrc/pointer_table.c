/* The pointers of a param group's tensors on any device, for kernels that are launched from Python (triton_tables.py).
 * Nothing here reads or writes the tensors' values, except the step counters on the CPU. */
#include <string.h>

#include "py_call.h"

enum { WEIGHT, GRADIENT, FIRST_STATE, SECOND_STATE, STEP_COUNTER, SIGNATURE, INDEX, COLUMNS = 8 };
#define OPERANDS_HERE 4 /* all columns before the step counter */
enum { MOVED = 1, REPLAN = 2 }; /* the status of a table compared with the last one */
#define ALIGNMENT 15

typedef struct {
    PyObject *counters, *used; /* lists; `used` are the parameters that have a gradient */
    tensor_view_t weight;      /* of the parameter being read */
    int device_type, device_id, status;
    Py_ssize_t count;
    states_t states;
    PyObject **known; /* the objects of the last call, OPERANDS_HERE for each row; not owned */
} reader_t;

static int same_memory_order(const tensor_view_t *a, const tensor_view_t *b) {
    if (a->ndim != b->ndim || a->dtype != b->dtype || a->device_type != b->device_type || a->device_id != b->device_id)
        return 0;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d] || (a->shape[d] > 1 && a->strides[d] != b->strides[d])) return 0;
    return 1;
}

static uint64_t mix(uint64_t hash, int64_t value) {
    hash = (hash ^ (uint64_t)value) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

static int64_t signature(const tensor_view_t *weight, const tensor_view_t *counter) {
    uint64_t hash = mix(mix(1, weight->dtype), weight->ndim);
    for (int d = 0; d < weight->ndim; d++) hash = mix(mix(hash, weight->shape[d]), weight->strides[d]);
    if (counter) hash = mix(mix(hash, counter->dtype), counter->device_type);
    return (int64_t)(hash >> 1);
}

/* Read an operand into its column. 1; 0 if the kernels cannot take it; -1 with an exception set. */
static int read_operand(reader_t *r, PyObject *tensor, int column, int64_t row[COLUMNS]) {
    /* Asking whether a tensor is a negated view takes as long as reading it. Parameters and states are asked once;
     * they are compared with those of the last call by address. Gradients are asked in every call. */
    PyObject **known = r->known + r->count * OPERANDS_HERE + column;
    const int asked = column != GRADIENT && *known == tensor;
    const int plain = asked ? gradcent_has_plain_type(tensor) : gradcent_is_plain(tensor);
    if (plain <= 0) return plain;
    *known = tensor;
    tensor_view_t view;
    if (gradcent_view_any_device(tensor, &view)) return 0;
    row[column] = (int64_t)(intptr_t)view.data;
    if (column == WEIGHT) r->weight = view;
    return column == WEIGHT || same_memory_order(&r->weight, &view);
}

static int read_counter(PyObject *tensor, tensor_view_t *view, int64_t row[COLUMNS]) {
    if (gradcent_view_any_device(tensor, view) || (view->dtype != F32 && view->dtype != F64)) return 0;
    for (int d = 0; d < view->ndim; d++)
        if (view->shape[d] != 1) return 0;
    row[STEP_COUNTER] = (int64_t)(intptr_t)view->data;
    return 1;
}

static int read_states(reader_t *r, PyObject *state, PyObject *keys, PyObject *columns, int64_t row[COLUMNS]) {
    tensor_view_t counter, *counted = NULL;
    for (Py_ssize_t k = 0; k < PyTuple_Size(keys); k++) {
        PyObject *value = PyDict_GetItemWithError(state, PyTuple_GetItem(keys, k));
        if (!value) return PyErr_Occurred() ? -1 : 0;
        const long column = PyLong_AsLong(PyTuple_GetItem(columns, k));
        if (column < FIRST_STATE || column > STEP_COUNTER) return 0;
        Py_INCREF(value);
        int status;
        if (column == STEP_COUNTER) {
            counted = &counter;
            status = read_counter(value, counted, row);
            if (status == 1 && PyList_Append(r->counters, value)) status = -1;
        } else {
            status = read_operand(r, value, (int)column, row);
        }
        Py_DECREF(value);
        if (status != 1) return status;
    }
    row[SIGNATURE] = signature(&r->weight, counted);
    return 1;
}

/* One parameter's row. 1; 0 if the kernels cannot take it; -1 with an exception set. */
static int read_parameter(reader_t *r, PyObject *parameter, PyObject *gradient, PyObject *keys, PyObject *columns,
                          int64_t row[COLUMNS]) {
    int status = read_operand(r, parameter, WEIGHT, row);
    if (status == 1) status = read_operand(r, gradient, GRADIENT, row);
    if (status != 1) return status;
    if (r->count == 0) r->device_type = r->weight.device_type, r->device_id = r->weight.device_id;
    if (r->weight.device_type != r->device_type || r->weight.device_id != r->device_id) return 0;
    row[SIGNATURE] = signature(&r->weight, NULL);
    if (PyTuple_Size(keys) == 0) return 1;
    PyObject *state = gradcent_find_state(&r->states, parameter);
    if (!state) return PyErr_Occurred() ? -1 : 0;
    if (!PyDict_Check(state)) return 0;
    Py_INCREF(state);
    status = read_states(r, state, keys, columns, row);
    Py_DECREF(state);
    return status;
}

static int is_aligned(const int64_t row[COLUMNS]) {
    return ((row[WEIGHT] | row[GRADIENT] | row[FIRST_STATE] | row[SECOND_STATE]) & ALIGNMENT) == 0;
}

static void compare_and_store(reader_t *r, char *table, const int64_t row[COLUMNS]) {
    int64_t last[COLUMNS];
    char *place = table + r->count * (Py_ssize_t)sizeof last;
    memcpy(last, place, sizeof last);
    if (!memcmp(last, row, sizeof last)) return;
    r->status |= MOVED;
    if (last[SIGNATURE] != row[SIGNATURE] || last[INDEX] != row[INDEX] || is_aligned(last) != is_aligned(row))
        r->status |= REPLAN;
    memcpy(place, row, sizeof last);
}

static int read_group(reader_t *r, PyObject *parameters, PyObject *keys, PyObject *columns, char *table) {
    PyObject *grad_name = PyUnicode_InternFromString("grad");
    int status = grad_name ? 1 : -1;
    for (Py_ssize_t i = 0; i < PyList_Size(parameters) && status == 1; i++) {
        PyObject *parameter = PyList_GetItem(parameters, i);
        Py_INCREF(parameter);
        PyObject *gradient = PyObject_GetAttr(parameter, grad_name);
        if (gradient && gradient != Py_None) {
            int64_t row[COLUMNS] = {[INDEX] = i};
            status = read_parameter(r, parameter, gradient, keys, columns, row);
            if (status == 1) {
                compare_and_store(r, table, row);
                r->count++;
                if (PyList_Append(r->used, parameter)) status = -1;
            }
        } else if (!gradient) {
            status = -1;
        }
        Py_XDECREF(gradient);
        Py_DECREF(parameter);
    }
    Py_XDECREF(grad_name);
    return status;
}

/* pointer_table(parameters, states, keys, columns, rows, known) -> (status, device type, device index, used parameters,
 * counters), or None if a tensor is unusual or a state is missing. `rows` is a bytearray of 64 bytes per parameter with
 * the rows of the last call, and is updated, as is `known`, 32 bytes per parameter; columns[k] is the column of the
 * state keys[k]. */
PyObject *gradcent_pointer_table(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *parameters, *states, *keys, *columns, *rows, *known;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!", &PyList_Type, &parameters, &PyDict_Type, &states, &PyTuple_Type, &keys,
                          &PyTuple_Type, &columns, &PyByteArray_Type, &rows, &PyByteArray_Type, &known))
        return NULL;
    const Py_ssize_t count = PyList_Size(parameters);
    if (PyByteArray_Size(rows) != count * COLUMNS * (Py_ssize_t)sizeof(int64_t) ||
        PyByteArray_Size(known) != count * OPERANDS_HERE * (Py_ssize_t)sizeof(PyObject *) ||
        PyTuple_Size(keys) != PyTuple_Size(columns)) {
        PyErr_SetString(PyExc_ValueError, "the table or the columns have another size than the parameters or the keys");
        return NULL;
    }
    reader_t r = {.counters = PyList_New(0),
                  .used = PyList_New(0),
                  .states = {states, 0, -1},
                  .known = (PyObject **)(void *)PyByteArray_AsString(known)};
    PyObject *result = NULL;
    const int status = r.counters && r.used ? read_group(&r, parameters, keys, columns, PyByteArray_AsString(rows)) : -1;
    if (status == 1)
        result = Py_BuildValue("(iiiOO)", r.status, r.device_type, r.device_id, r.used, r.counters);
    else if (status == 0)
        Py_INCREF(Py_None), result = Py_None;
    Py_XDECREF(r.counters);
    Py_XDECREF(r.used);
    return result;
}

/* advance_counters(counters, by) -> the value that all have now, or None if they differ. The counters are those that
 * pointer_table returned, which checked them; they are on the CPU. */
PyObject *gradcent_advance_counters(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *counters;
    int by, same = 1;
    double value = 0;
    if (!PyArg_ParseTuple(args, "O!i", &PyList_Type, &counters, &by)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(counters); i++) {
        tensor_view_t view;
        if (gradcent_view(PyList_GetItem(counters, i), &view) || (view.dtype != F32 && view.dtype != F64)) {
            PyErr_Format(gradcent_unsupported, "step counter %zd is not a float on the CPU", i);
            return NULL;
        }
        const double now = view.dtype == F64 ? (*(double *)view.data += by) : (*(float *)view.data += (float)by);
        if (i > 0 && now != value) same = 0;
        value = now;
    }
    if (same) return PyFloat_FromDouble(value);
    Py_RETURN_NONE;
}
