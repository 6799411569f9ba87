/* A step of a whole param group in one call: parameters, gradients and states are found and stepped without Python
 * code for any single tensor. Only the plan's layouts are reused across steps (a table, rebuilt when the parameters
 * change); gradients, states and pointers are read in every step. The Python objects are used by the calling thread,
 * with the GIL; the worker threads see plain memory only. */
#include "py_call.h"

#define TABLE "gradcent.layout_table"

typedef struct {
    PyObject *parameter; /* borrowed: the caller keeps the parameters as long as the table */
    int64_t layout[4];
    int has_layout;
} entry_t;

typedef struct {
    Py_ssize_t count;
    Py_ssize_t state_position; /* where in the optimizer's dict the first of these states was in the last step */
    entry_t entries[];
} table_t;

static void free_table(PyObject *capsule) { gradcent_free(PyCapsule_GetPointer(capsule, TABLE)); }

/* layout_table(parameters, layouts) -> capsule for step_group */
PyObject *gradcent_layout_table(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *parameters, *layouts;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &parameters, &PyList_Type, &layouts)) return NULL;
    const Py_ssize_t count = PyList_Size(parameters);
    if (PyList_Size(layouts) != count) {
        PyErr_Format(PyExc_ValueError, "%zd parameters, but %zd layouts", count, PyList_Size(layouts));
        return NULL;
    }
    table_t *table = gradcent_allocate(sizeof *table + (size_t)count * sizeof *table->entries);
    if (!table) return PyErr_NoMemory();
    table->count = count;
    PyObject *capsule = PyCapsule_New(table, TABLE, free_table);
    if (!capsule) {
        gradcent_free(table);
        return NULL;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        entry_t *entry = &table->entries[k];
        PyObject *layout = PyList_GetItem(layouts, k);
        entry->parameter = PyList_GetItem(parameters, k);
        entry->has_layout = layout != Py_None;
        if (entry->has_layout && gradcent_read_layout(layout, entry->layout)) {
            Py_DECREF(capsule);
            return NULL;
        }
    }
    return capsule;
}

static int is_for(const table_t *table, PyObject *parameters) {
    if (PyList_Size(parameters) != table->count) return 0;
    for (Py_ssize_t i = 0; i < table->count; i++)
        if (PyList_GetItem(parameters, i) != table->entries[i].parameter) return 0;
    return 1;
}

/* Hold and read one parameter's gradient and states. 1; 0 if this group cannot be stepped here; -1 with an exception
 * set. */
static int add_parameter(call_t *call, Py_ssize_t index, PyObject *parameter, states_t *states, PyObject *keys,
                         PyObject *grad_name) {
    static const int operands[] = {STATE, STATE2};
    const Py_ssize_t wanted = PyTuple_Size(keys);
    PyObject *gradient = PyObject_GetAttr(parameter, grad_name);
    if (!gradient) return -1;
    if (gradient == Py_None) {
        Py_DECREF(gradient);
        call->job.tensors[index].skipped = 1;
        return 1;
    }
    int status = gradcent_add(call, index, GRAD, gradient);
    Py_DECREF(gradient);
    if (status == 1) status = gradcent_add(call, index, PARAM, parameter);
    if (status < 1 || wanted == 0) return status;
    PyObject *state = gradcent_find_state(states, parameter);
    if (!state) return PyErr_Occurred() ? -1 : 0;
    if (!PyDict_Check(state)) return 0;
    Py_INCREF(state);
    for (Py_ssize_t k = 0; k < wanted && status == 1; k++) {
        PyObject *value = PyDict_GetItemWithError(state, PyTuple_GetItem(keys, k));
        if (value)
            status = gradcent_add(call, index, call->counts_steps && k == wanted - 1 ? COUNTER : operands[k], value);
        else
            status = PyErr_Occurred() ? -1 : 0;
    }
    Py_DECREF(state);
    return status;
}

static int read_group(call_t *call, table_t *table, PyObject *dict, PyObject *keys) {
    const int wanted = gradcent_state_count(&call->job.rule) + call->counts_steps;
    if (PyTuple_Size(keys) != wanted) {
        PyErr_Format(PyExc_ValueError, "this step has %d states, got %zd keys", wanted, PyTuple_Size(keys));
        return -1;
    }
    PyObject *grad_name = PyUnicode_InternFromString("grad");
    states_t states = {dict, table->state_position, -1};
    int status = grad_name ? 1 : -1;
    for (Py_ssize_t i = 0; i < table->count && status == 1; i++) {
        const entry_t *entry = &table->entries[i];
        const char *why;
        status = add_parameter(call, i, entry->parameter, &states, keys, grad_name);
        if (status == 1 && !call->job.tensors[i].skipped &&
            gradcent_read(call, i, entry->has_layout ? entry->layout : NULL, &why))
            status = 0;
    }
    if (states.first >= 0) table->state_position = states.first;
    Py_XDECREF(grad_name);
    return status;
}

/* Tell autograd which parameters were written to. */
static int bump_versions(const call_t *call, const table_t *table, PyObject *parameters, PyObject *bump) {
    PyObject *changed = NULL, *result;
    for (Py_ssize_t i = 0; i < table->count && !changed; i++)
        if (call->job.tensors[i].skipped && !(changed = PyList_New(0))) return -1;
    for (Py_ssize_t i = 0; i < table->count && changed; i++)
        if (!call->job.tensors[i].skipped && PyList_Append(changed, table->entries[i].parameter)) {
            Py_DECREF(changed);
            return -1;
        }
    result = PyObject_CallFunctionObjArgs(bump, changed ? changed : parameters, NULL);
    Py_XDECREF(changed);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* step_group(op, table, parameters, states, keys, numbers, bump) -> True: stepped; False: cannot be stepped here,
 * nothing changed; None: the table belongs to other parameters. The keys are those of the states in the order of the
 * operands, the step counter's last. bump(changed parameters) is called after the step. */
PyObject *gradcent_step_group(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *parameters, *states, *keys, *numbers, *bump;
    const char *op;
    call_t call;
    if (!PyArg_ParseTuple(args, "sOO!O!O!O!O", &op, &capsule, &PyList_Type, &parameters, &PyDict_Type, &states,
                          &PyTuple_Type, &keys, &PyTuple_Type, &numbers, &bump))
        return NULL;
    table_t *table = PyCapsule_GetPointer(capsule, TABLE);
    if (!table) return NULL;
    if (!is_for(table, parameters)) Py_RETURN_NONE;
    int status = gradcent_begin(&call, op, numbers, table->count) ? -1 : read_group(&call, table, states, keys);
    if (status == 1 && (gradcent_run(&call) || bump_versions(&call, table, parameters, bump))) status = -1;
    gradcent_end(&call);
    return status < 0 ? NULL : PyBool_FromLong(status);
}
