/* Finding a parameter's state in the optimizer's dict. Looking up a tensor calls its __hash__, which is Python code. The
 * states are nearly always in the order of the parameters, so the dict is walked in parallel, and a lookup is needed
 * only where the orders differ. */
#include "py_call.h"

PyObject *gradcent_find_state(states_t *states, PyObject *parameter) {
    PyObject *key, *value;
    Py_ssize_t next = states->position;
    if (!PyDict_Next(states->dict, &next, &key, &value) || key != parameter) {
        value = PyDict_GetItemWithError(states->dict, parameter);
        if (!value || states->first >= 0) return value;
        for (next = 0; PyDict_Next(states->dict, &next, &key, &value) && key != parameter;) {
        }
    }
    if (states->first < 0) states->first = next - 1;
    states->position = next;
    return value;
}
