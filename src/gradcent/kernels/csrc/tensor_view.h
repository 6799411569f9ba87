/* What the C code reads of a torch tensor: see tensor_view.c. */
#ifndef GRADCENT_TENSOR_VIEW_H
#define GRADCENT_TENSOR_VIEW_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "gradcent.h"

#define MAX_DIMS 64

typedef struct {
    char *data;
    int ndim, dtype;
    int device_type, device_id; /* DLPack's */
    const int64_t *shape, *strides; /* owned by the tensor */
} tensor_view_t;

/* setup: torch.Tensor, torch.nn.Parameter, and the capsule Tensor.__dlpack_c_exchange_api__. */
int gradcent_view_setup(PyObject *tensor_type, PyObject *parameter_type, PyObject *exchange); /* -1: exception set */

/* 1 if the tensor has no dispatch of its own (as DTensors and fake tensors have); 0 if it has; -1 with an exception
 * set. */
int gradcent_has_plain_type(PyObject *tensor);

/* 1 if the tensor's values are its memory: a plain type, and not a negated view. May let other Python threads run. */
int gradcent_is_plain(PyObject *tensor);

/* The shape of any tensor with memory, on any device; -1 (no exception) if there is none. */
int gradcent_view_shape(PyObject *tensor, int *ndim, const int64_t **shape);

/* Read a plain tensor. Runs no Python code. 0, or -1 (no exception) if it is not a dense CPU tensor of float32,
 * float64, bfloat16 or float16. */
int gradcent_view(PyObject *tensor, tensor_view_t *view);

/* The same for a tensor on any device. */
int gradcent_view_any_device(PyObject *tensor, tensor_view_t *view);

#endif
