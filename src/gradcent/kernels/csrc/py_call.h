/* One call from Python: the hyperparameters, the tensors with a reference held to each, the step counters. */
#ifndef GRADCENT_PY_CALL_H
#define GRADCENT_PY_CALL_H

#include "tensor_view.h"

enum { COUNTER = OPERANDS, OBJECTS }; /* a tensor's step counter comes behind its operands */

typedef struct {
    void *value;
    int dtype;
} counter_t;

typedef struct {
    job_t job;
    double lr, lr_decay;
    int counts_steps;
    PyObject **objects; /* OBJECTS for each tensor, NULL where there is none; references are held until the end */
    counter_t *counters;
} call_t;

extern PyObject *gradcent_unsupported; /* the exception for tensors that these kernels cannot take */

/* Read the hyperparameters, a tuple, and allocate for `count` tensors. -1: exception set.
 * centralize (decay)
 * sgd        (lr, momentum, dampening, nesterov, …)
 * adam       (lr, beta1, beta2, eps, …)
 * adagrad    (lr, lr_decay, eps, …)
 * with … = weight decay, decoupled, projected, maximize, update, grad scale. */
int gradcent_begin(call_t *call, const char *op, PyObject *numbers, Py_ssize_t count);
int gradcent_state_count(const rule_t *rule); /* states besides the step counter */

/* Hold a tensor as an operand. 1; 0 if its values are not its memory; -1 with an exception set. Whether it is a negated
 * view is tested for gradients and what is centralized; parameters and states are never negated views unless a private
 * function of torch made them so. */
int gradcent_add(call_t *call, Py_ssize_t index, int operand, PyObject *tensor);

/* Read the operands of one tensor. Runs no Python code. 0; 1 if the kernels cannot follow the strides; -1 and `why`
 * if they cannot take the tensor. */
int gradcent_read(call_t *call, Py_ssize_t index, const int64_t *layout, const char **why);

/* Increment the step counters and run. -1: exception set, nothing changed. */
int gradcent_run(call_t *call);
void gradcent_end(call_t *call);

/* py_states.c: the optimizer's dict of states, walked in the order of the parameters. */
typedef struct {
    PyObject *dict;
    Py_ssize_t position, first; /* of PyDict_Next: the next one; the first one found, or -1 */
} states_t;

/* Borrowed; NULL if there is none, or with an exception set. */
PyObject *gradcent_find_state(states_t *states, PyObject *parameter);

/* operands.c: combine the views of one tensor's operands. Results as gradcent_read. */
int gradcent_combine(tensor_t *tensor, const tensor_view_t *views, const int *present, const int64_t *layout,
                     const char **why);

int gradcent_layout_setup(void);
int gradcent_read_layout(PyObject *layout, int64_t out[4]); /* -1: exception set */

/* The functions of the Python module. */
PyObject *gradcent_step_lists(PyObject *self, PyObject *args);
PyObject *gradcent_layout_table(PyObject *self, PyObject *args);
PyObject *gradcent_step_group(PyObject *self, PyObject *args);
PyObject *gradcent_same_shapes(PyObject *self, PyObject *args);
PyObject *gradcent_shapes(PyObject *self, PyObject *args);
PyObject *gradcent_pointer_table(PyObject *self, PyObject *args);
PyObject *gradcent_advance_counters(PyObject *self, PyObject *args);

#endif
