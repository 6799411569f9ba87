/* What torch's `_init_group` does once all states are there: gather, for the parameters that have a
 * gradient, the gradients and the state tensors. It is the only per-tensor work left to Python, and on
 * thousands of small tensors it costs more than the step. */
#include "operands.h"

/* The state of `parameter`: a tensor's hash is computed in Python, so walk the dict in step with the
 * parameters, whose order is nearly always the same, and look it up only when they part. */
static PyObject *state_of(PyObject *states, PyObject *parameter, Py_ssize_t *position) {
    PyObject *key, *value;
    Py_ssize_t next = *position;
    while (PyDict_Next(states, &next, &key, &value))
        if (key == parameter) {
            *position = next;
            return value;
        }
    return PyDict_GetItemWithError(states, parameter);
}

static int gather(PyObject *parameters, PyObject *states, PyObject *keys, int required, int thorough,
                  PyObject **lists) {
    Py_ssize_t position = 0, wanted = PyTuple_Size(keys);
    PyObject *name = PyUnicode_InternFromString("grad");
    int complete = name ? 1 : -1;
    for (Py_ssize_t index = 0; complete == 1 && index < PyList_Size(parameters); index++) {
        PyObject *parameter = PyList_GetItem(parameters, index), *state = NULL;
        PyObject *gradient = PyObject_GetAttr(parameter, name);
        if (!gradient) {
            complete = -1;
        } else if (gradient != Py_None) {
            if (thorough && (!gradcent_is_plain(gradient) || !gradcent_is_plain(parameter))) complete = 0;
            if (complete == 1 && (PyList_Append(lists[0], parameter) || PyList_Append(lists[1], gradient))) complete = -1;
            if (complete == 1 && wanted && !(state = state_of(states, parameter, &position)))
                complete = PyErr_Occurred() ? -1 : required ? 0 : 1;
            if (state && !PyDict_Check(state)) complete = 0;
            for (Py_ssize_t k = 0; complete == 1 && k < wanted; k++) {
                PyObject *value = state ? PyDict_GetItemWithError(state, PyTuple_GetItem(keys, k)) : NULL;
                if (!value && PyErr_Occurred()) complete = -1;
                if (!value && required) complete = 0;
                if (complete == 1 && PyList_Append(lists[2 + k], value ? value : Py_None)) complete = -1;
            }
        }
        Py_XDECREF(gradient);
    }
    Py_XDECREF(name);
    return complete;
}

/* collect(parameters, states, keys, required, thorough, outputs) -> bool. False leaves the outputs as they
 * were: a required state is missing, or (looked for if thorough) a gradient is not an ordinary tensor, and
 * torch's own way has to be taken. */
PyObject *gradcent_collect(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *parameters, *states, *keys, *outputs, *lists[8] = {NULL};
    int required, thorough;
    if (!PyArg_ParseTuple(args, "O!O!O!ppO!", &PyList_Type, &parameters, &PyDict_Type, &states, &PyTuple_Type, &keys,
                          &required, &thorough, &PyTuple_Type, &outputs))
        return NULL;
    Py_ssize_t count = PyTuple_Size(outputs);
    if (count != PyTuple_Size(keys) + 2 || count > 8) {
        PyErr_SetString(PyExc_ValueError, "one output list for parameters, one for gradients, one for each key");
        return NULL;
    }
    int complete = 1;
    for (Py_ssize_t k = 0; k < count; k++)
        if (!(lists[k] = PyList_New(0))) complete = -1;
    if (complete == 1) complete = gather(parameters, states, keys, required, thorough, lists);
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *to = PyTuple_GetItem(outputs, k);
        if (complete == 1 && PyList_SetSlice(to, PyList_Size(to), PyList_Size(to), lists[k])) complete = -1;
        Py_XDECREF(lists[k]);
    }
    return complete < 0 ? NULL : PyBool_FromLong(complete);
}
