/* How a tensor of torch is seen from C: see tensors.c. */
#ifndef GRADCENT_TENSORS_H
#define GRADCENT_TENSORS_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "gradcent.h"

#define MAX_DIMS 64

typedef struct {
    char *data;
    int ndim, dtype; /* dtype is -1 for what these kernels cannot take */
    const int64_t *shape, *strides; /* into the tensor itself, or into `own` */
    int64_t own[2 * MAX_DIMS];
} seen_t;

/* Python's face: setup(types, exchange, describe), and torch_functions(None | (offset, addresses, samples)). */
int gradcent_tensors_setup(PyObject *types, PyObject *exchange, PyObject *describe);
PyObject *gradcent_torch_functions(PyObject *self, PyObject *argument);
PyObject *gradcent_look_at(PyObject *self, PyObject *tensor);
PyObject *gradcent_count_changes(PyObject *self, PyObject *tensors);

int gradcent_type_is_plain(PyObject *tensor); /* exactly torch.Tensor or Parameter */
int gradcent_is_plain(PyObject *tensor);      /* and dense, real, on the CPU */
int gradcent_look(PyObject *tensor, seen_t *seen); /* 0, or -1 with a Python exception set */

/* Where torch's own functions are in use. These need no GIL, only that nobody changes the tensor. */
int gradcent_has_torch_functions(void);
const void *gradcent_inside(PyObject *tensor);            /* the at::Tensor in a Python tensor */
const void *gradcent_gradient(const void *tensor);        /* NULL if there is none */
int gradcent_see(const void *tensor, seen_t *seen);       /* 0, or -1 if it is no ordinary tensor */
void gradcent_count_change(const void *tensor);           /* as torch's in-place operations do, for autograd */
void *gradcent_hold(const void *tensor);                  /* another reference to it, NULL if memory is short */
void gradcent_let_go(void *held);                         /* with the GIL: it may be the last */
void gradcent_fetch_storage(const void *tensor);
void gradcent_fetch(const void *tensor);                  /* ask memory for what the functions above read */

#endif
