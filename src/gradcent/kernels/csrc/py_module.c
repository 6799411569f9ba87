/* The Python module gradcent.kernels._cpu. Use it through gradcent.kernels.native. */
#include "py_call.h"

/* A function pointer and an object pointer need not be alike in C, but an address from dlsym is both. */
#define AS_FUNCTION(type, address) ((union { void *object; type function; }){.object = (address)}.function)

static PyObject *setup(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tensor, *parameter, *exchange;
    unsigned long long parallel_for, get_num_threads;
    if (!PyArg_ParseTuple(args, "OOOKK", &tensor, &parameter, &exchange, &parallel_for, &get_num_threads)) return NULL;
    if (gradcent_view_setup(tensor, parameter, exchange) || gradcent_layout_setup()) return NULL;
    gradcent_use_threads(AS_FUNCTION(parallel_for_t, (void *)(uintptr_t)parallel_for),
                         AS_FUNCTION(get_num_threads_t, (void *)(uintptr_t)get_num_threads));
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

static PyObject *peak_bytes(PyObject *self, PyObject *args) {
    (void)self, (void)args;
    return PyLong_FromSize_t(gradcent_peak_bytes(1));
}

static PyObject *fail_allocation(PyObject *self, PyObject *args) {
    (void)self;
    long long after;
    if (!PyArg_ParseTuple(args, "L", &after)) return NULL;
    gradcent_fail_allocation(after);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"step_lists", gradcent_step_lists, METH_VARARGS,
     "step_lists(op, lists, layouts, numbers, new_buffers): centralize, or step, whole lists -> indices left out"},
    {"step_group", gradcent_step_group, METH_VARARGS,
     "step_group(op, table, parameters, states, keys, numbers, bump): step a param group -> True, False or None"},
    {"layout_table", gradcent_layout_table, METH_VARARGS, "layout_table(parameters, layouts) -> table for step_group"},
    {"shapes", gradcent_shapes, METH_O, "shapes(parameters) -> their shapes for same_shapes, or None"},
    {"same_shapes", gradcent_same_shapes, METH_VARARGS, "same_shapes(shapes, parameters) -> bool"},
    {"pointer_table", gradcent_pointer_table, METH_VARARGS,
     "pointer_table(parameters, states, keys, columns, rows, known): read the pointers of a param group on any device"},
    {"advance_counters", gradcent_advance_counters, METH_VARARGS,
     "advance_counters(counters, by): add to step counters on the CPU -> the value of all, or None"},
    {"setup", setup, METH_VARARGS, "setup(Tensor, Parameter, exchange table, parallel_for, get_num_threads)"},
    {"instruction_set", instruction_set, METH_VARARGS, "Name the instruction set in use, or choose one"},
    {"peak_bytes", peak_bytes, METH_NOARGS, "Bytes that the C code had allocated at most since the last call of this"},
    {"fail_allocation", fail_allocation, METH_VARARGS, "For tests: let an allocation fail after so many more; -1: never"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_cpu", "The native CPU kernels; use gradcent.kernels.native.", -1, methods, NULL, NULL,
    NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    gradcent_unsupported = PyErr_NewException("gradcent.kernels._cpu.Unsupported", PyExc_TypeError, NULL);
    if (!gradcent_unsupported) return NULL;
    Py_INCREF(gradcent_unsupported);
    if (PyModule_AddObject(module, "Unsupported", gradcent_unsupported)) return NULL;
    return module;
}
