/* The Python face of the kernels: one function per operation, each a single call for a whole list. */
#include "call.h"

static PyObject *centralize(PyObject *self, PyObject *args) { return (void)self, gradcent_lists(CENTRALIZE, args); }
static PyObject *sgd(PyObject *self, PyObject *args) { return (void)self, gradcent_lists(SGD, args); }
static PyObject *adam(PyObject *self, PyObject *args) { return (void)self, gradcent_lists(ADAM, args); }
static PyObject *adagrad(PyObject *self, PyObject *args) { return (void)self, gradcent_lists(ADAGRAD, args); }

static PyObject *setup(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *types, *exchange, *describe, *zeros_like;
    unsigned long long entry[5];
    if (!PyArg_ParseTuple(args, "O!OOOKKKKK", &PyTuple_Type, &types, &exchange, &describe, &zeros_like, &entry[0],
                          &entry[1], &entry[2], &entry[3], &entry[4]))
        return NULL;
    if (gradcent_tensors_setup(types, exchange, describe) || gradcent_operands_setup(zeros_like)) return NULL;
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
    {"centralize", centralize, METH_VARARGS, "centralize((out, tensors, weights), layouts, numbers) -> indices left out"},
    {"sgd", sgd, METH_VARARGS, "sgd(lists, layouts, numbers): one step for a whole list -> indices left out"},
    {"adam", adam, METH_VARARGS, "adam(lists, layouts, numbers): one step for a whole list -> indices left out"},
    {"adagrad", adagrad, METH_VARARGS, "adagrad(lists, layouts, numbers): one step for a whole list -> indices left out"},
    {"table", gradcent_table, METH_VARARGS, "table(parameters, layouts) -> what `group` is to know of them"},
    {"group", gradcent_group, METH_VARARGS,
     "group(name, table, parameters, states, keys, numbers): one step of a param group -> whether it was taken, or None"},
    {"collect", gradcent_collect, METH_VARARGS,
     "collect(parameters, states, keys, required, outputs) -> whether everything was there"},
    {"count_changes", gradcent_count_changes, METH_O, "Tell autograd that these were written to -> whether it was done"},
    {"look_at", gradcent_look_at, METH_O, "What torch's functions say of a tensor, to be checked"},
    {"torch_functions", gradcent_torch_functions, METH_O, "Use these functions of torch's libraries, or none"},
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
