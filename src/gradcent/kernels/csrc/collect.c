/* What torch's `_init_group` does once all states are there: gather, for the parameters that have a
 * gradient, the gradients and the state tensors. For steps that need torch's own way (scaled gradients, other
 * forms); whole groups that do not are stepped by group.c. */
#include "call.h"

/* The state of `parameter`: a tensor's hash is computed in Python, so walk the dict in step with the
 * parameters, whose order is nearly always the same, and look it up only when they part. */
PyObject *gradcent_next_state(PyObject *states, PyObject *parameter, cursor_t *cursor) {
    PyObject *key, *value;
    Py_ssize_t next = cursor->next;
    if (!PyDict_Next(states, &next, &key, &value) || key != parameter) return NULL;
    if (cursor->first < 0) cursor->first = next - 1;
    cursor->next = next;
    return value;
}

PyObject *gradcent_search_state(PyObject *states, PyObject *parameter, cursor_t *cursor) {
    PyObject *found = PyDict_GetItemWithError(states, parameter), *key, *value;
    if (!found || cursor->searched) return found;
    cursor->searched = 1; /* once: where is it, so that those behind it are found by walking on */
    for (Py_ssize_t next = 0, at = 0; PyDict_Next(states, &next, &key, &value); at = next)
        if (key == parameter) {
            cursor->next = at;
            gradcent_next_state(states, parameter, cursor);
            break;
        }
    return found;
}

static int gather(PyObject *parameters, PyObject *states, PyObject *keys, int required, PyObject **lists) {
    cursor_t cursor = {0, -1, 0};
    const Py_ssize_t wanted = PyTuple_Size(keys);
    PyObject *name = PyUnicode_InternFromString("grad");
    int complete = name ? 1 : -1;
    for (Py_ssize_t index = 0; complete == 1 && index < PyList_Size(parameters); index++) {
        PyObject *parameter = PyList_GetItem(parameters, index), *state = NULL;
        PyObject *gradient = PyObject_GetAttr(parameter, name);
        if (!gradient) {
            complete = -1;
        } else if (gradient != Py_None) {
            if (!gradcent_is_plain(gradient) || !gradcent_is_plain(parameter)) complete = 0;
            if (complete == 1 && (PyList_Append(lists[0], parameter) || PyList_Append(lists[1], gradient))) complete = -1;
            if (complete == 1 && wanted && !(state = gradcent_next_state(states, parameter, &cursor)) &&
                !(state = gradcent_search_state(states, parameter, &cursor)))
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

/* collect(parameters, states, keys, required, outputs) -> bool. False leaves the outputs as they were: a
 * required state is missing, or a gradient is not an ordinary tensor, and torch's own way has to be taken. */
PyObject *gradcent_collect(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *parameters, *states, *keys, *outputs, *lists[8] = {NULL};
    int required;
    if (!PyArg_ParseTuple(args, "O!O!O!pO!", &PyList_Type, &parameters, &PyDict_Type, &states, &PyTuple_Type, &keys,
                          &required, &PyTuple_Type, &outputs))
        return NULL;
    Py_ssize_t count = PyTuple_Size(outputs);
    if (count != PyTuple_Size(keys) + 2 || count > 8) {
        PyErr_SetString(PyExc_ValueError, "one output list for parameters, one for gradients, one for each key");
        return NULL;
    }
    int complete = 1;
    for (Py_ssize_t k = 0; k < count; k++)
        if (!(lists[k] = PyList_New(0))) complete = -1;
    if (complete == 1) complete = gather(parameters, states, keys, required, lists);
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *to = PyTuple_GetItem(outputs, k);
        if (complete == 1 && PyList_SetSlice(to, PyList_Size(to), PyList_Size(to), lists[k])) complete = -1;
        Py_XDECREF(lists[k]);
    }
    return complete < 0 ? NULL : PyBool_FromLong(complete);
}
