/* From Python lists of tensors to tensor_t: see operands.c. */
#ifndef GRADCENT_OPERANDS_H
#define GRADCENT_OPERANDS_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "gradcent.h"

/* The lists of one call; those an operation has no use for are NULL (or None, which is the same). */
typedef struct {
    PyObject *list[OPERANDS];
    PyObject *layouts;
    int allocate; /* SGD: the operand whose None entries are to be made, or -1 */
} operands_t;

extern PyObject *gradcent_unsupported; /* the exception for what these kernels cannot take */

int gradcent_operands_setup(PyObject *tensor_types, PyObject *exchange, PyObject *describe, PyObject *zeros_like);

/* Fill job->tensors (one entry per list item; entries to be left out have numel 0 and their index is
 * appended to `left_out`). Returns 0, or -1 with a Python exception set and nothing touched. */
int gradcent_read_operands(job_t *job, operands_t *operands, PyObject *left_out);

int gradcent_is_plain(PyObject *tensor); /* exactly torch.Tensor or Parameter, dense, real, on the CPU */

/* Pointers to scalar step counters, which are read and incremented. */
int gradcent_read_steps(PyObject *list, Py_ssize_t count, void **pointers, uint8_t *dtypes);

/* collect.c */
PyObject *gradcent_collect(PyObject *self, PyObject *args);

#endif
