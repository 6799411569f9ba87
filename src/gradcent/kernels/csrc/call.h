/* One call from Python: the numbers of the rule, the tensors, the step counters. */
#ifndef GRADCENT_CALL_H
#define GRADCENT_CALL_H

#include "tensors.h"

typedef struct {
    job_t job;
    double lr, lr_decay;
    int threads;
    void **counters; /* one for each tensor, if the rule counts steps */
    uint8_t *counter_types;
} call_t;

extern PyObject *gradcent_unsupported; /* the exception for what these kernels cannot take */

/* The numbers are a tuple:
 * CENTRALIZE (decay, threads)
 * SGD        (lr, momentum, dampening, nesterov, …)
 * ADAM       (lr, beta1, beta2, eps, …)
 * ADAGRAD    (lr, lr_decay, eps, …)
 * with … = weight decay, decoupled, projected, maximize, update, unscale, threads. */
int gradcent_begin(call_t *call, int op, PyObject *numbers, Py_ssize_t count); /* -1: exception set */
int gradcent_finish(call_t *call, int release);                                /* the GIL or not; -1: exception set */
void gradcent_end(call_t *call);

/* How many state tensors an operation has besides the step counter. */
int gradcent_state_count(const rule_t *rule);

/* operands.c: put the operands of one tensor together. 0; 1 if their dims are in an order that the kernels
 * cannot follow; -1 and `why` if they are not for these kernels. Needs no GIL. */
int gradcent_fit(tensor_t *tensor, const seen_t *seen, const int *there, const int64_t *layout, const char **why);
int gradcent_fit_counter(call_t *call, int64_t index, const seen_t *seen, const char **why);
int gradcent_read_layout(PyObject *layout, int64_t out[4]); /* -1: exception set */

/* operands.c: a call given as lists. group.c: a call given as a param group. */
int gradcent_operands_setup(PyObject *zeros_like);
PyObject *gradcent_lists(int op, PyObject *args);
PyObject *gradcent_table(PyObject *self, PyObject *args);
PyObject *gradcent_group(PyObject *self, PyObject *args);

/* collect.c */
PyObject *gradcent_collect(PyObject *self, PyObject *args);

/* A place in the optimizer's dict of states: where to look next, and where the first one was found (-1: nowhere). */
typedef struct {
    Py_ssize_t next, first;
    int searched;
} cursor_t;
PyObject *gradcent_next_state(PyObject *states, PyObject *parameter, cursor_t *cursor); /* NULL: it is not next */
/* Wherever it is; runs Python code. NULL: there is none, or an exception is set. */
PyObject *gradcent_search_state(PyObject *states, PyObject *parameter, cursor_t *cursor);

#endif
