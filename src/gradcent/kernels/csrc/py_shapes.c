/* Whether the parameters of a group still have the shapes they had: `p.data` may be replaced by another shape. In
 * Python, a torch.Size for each of 2,000 parameters takes longer than a step. */
#include <string.h>

#include "py_call.h"

#define SHAPES "gradcent.shapes"

typedef struct {
    Py_ssize_t count;
    int64_t sizes[]; /* ndim, then that many sizes, for each parameter */
} shapes_t;

static void free_shapes(PyObject *capsule) { gradcent_free(PyCapsule_GetPointer(capsule, SHAPES)); }

/* shapes(parameters) -> capsule for same_shapes; None if a tensor has no memory to be read here (DTensor, meta). */
PyObject *gradcent_shapes(PyObject *self, PyObject *parameters) {
    (void)self;
    const Py_ssize_t count = PyList_Size(parameters);
    if (count < 0) return NULL;
    shapes_t *shapes = NULL;
    for (int pass = 0; pass < 2; pass++) { /* count, then copy */
        Py_ssize_t used = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            const int64_t *shape;
            int ndim;
            PyObject *tensor = PyList_GetItem(parameters, i);
            if (gradcent_has_plain_type(tensor) != 1 || gradcent_view_shape(tensor, &ndim, &shape)) {
                gradcent_free(shapes);
                if (PyErr_Occurred()) return NULL;
                Py_RETURN_NONE;
            }
            if (shapes) {
                shapes->sizes[used] = ndim;
                if (ndim) memcpy(shapes->sizes + used + 1, shape, (size_t)ndim * sizeof *shape);
            }
            used += 1 + ndim;
        }
        if (shapes) break;
        shapes = gradcent_allocate(sizeof *shapes + (size_t)used * sizeof *shapes->sizes);
        if (!shapes) return PyErr_NoMemory();
        shapes->count = count;
    }
    PyObject *capsule = PyCapsule_New(shapes, SHAPES, free_shapes);
    if (!capsule) gradcent_free(shapes);
    return capsule;
}

/* same_shapes(shapes, parameters) -> whether the parameters have these shapes */
PyObject *gradcent_same_shapes(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *parameters;
    if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyList_Type, &parameters)) return NULL;
    const shapes_t *shapes = PyCapsule_GetPointer(capsule, SHAPES);
    if (!shapes) return NULL;
    if (PyList_Size(parameters) != shapes->count) Py_RETURN_FALSE;
    const int64_t *expected = shapes->sizes;
    for (Py_ssize_t i = 0; i < shapes->count; i++) {
        const int64_t *shape;
        int ndim;
        PyObject *tensor = PyList_GetItem(parameters, i);
        const int plain = gradcent_has_plain_type(tensor);
        if (plain < 0) return NULL;
        if (!plain || gradcent_view_shape(tensor, &ndim, &shape) || ndim != *expected ||
            (ndim && memcmp(shape, expected + 1, (size_t)ndim * sizeof *shape)))
            Py_RETURN_FALSE;
        expected += 1 + ndim;
    }
    Py_RETURN_TRUE;
}
