/* A whole param group in one call: its parameters, their gradients and states are found and stepped
 * without Python's help for any single tensor. What is remembered from step to step is the plan's layouts
 * (a table, made anew when the parameters are others); every pointer is read from the tensors themselves,
 * in every step, by the threads that share out the work. */
#include <stdlib.h>
#include <string.h>

#include "call.h"

#define PER_ITEM 32 /* parameters looked at in one go, so that memory is asked for all of them at once */
#define TABLE "gradcent.table"
/* Bytes of parameters from which on the GIL is released: below, a step takes a few milliseconds. */
#define LONG_STEP (16 << 20)

typedef struct {
    PyObject *parameter;
    int64_t layout[4];
    int planned;
} entry_t;

typedef struct {
    Py_ssize_t count;
    Py_ssize_t position; /* where in the optimizer's dict the states of these parameters began, last time */
    entry_t entries[];
} table_t;

static void forget(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, TABLE)); }

/* table(parameters, layouts) -> what `group` wants to know of them. The parameters are borrowed (the garbage
 * collector cannot look into a capsule): whoever keeps the table keeps them, too. */
PyObject *gradcent_table(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *parameters, *layouts;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &parameters, &PyList_Type, &layouts)) return NULL;
    const Py_ssize_t count = PyList_Size(parameters);
    if (PyList_Size(layouts) != count) {
        PyErr_Format(PyExc_ValueError, "%zd parameters, but %zd layouts", count, PyList_Size(layouts));
        return NULL;
    }
    table_t *table = calloc(1, sizeof *table + (size_t)count * sizeof *table->entries);
    if (!table) return PyErr_NoMemory();
    table->count = count;
    PyObject *capsule = PyCapsule_New(table, TABLE, forget);
    if (!capsule) {
        free(table);
        return NULL;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        entry_t *entry = &table->entries[k];
        PyObject *layout = PyList_GetItem(layouts, k);
        entry->planned = layout != Py_None;
        if (entry->planned && gradcent_read_layout(layout, entry->layout)) {
            Py_DECREF(capsule);
            return NULL;
        }
        entry->parameter = PyList_GetItem(parameters, k);
    }
    return capsule;
}

/* ---- with the GIL: the states' Python objects */

typedef struct {
    call_t *call;
    const table_t *table;
    PyObject **states; /* `wanted` for each parameter, NULL where there is none */
    int64_t held;      /* how many of them are references of our own */
    int wanted, counted, refused;
} gathering_t;

/* States are borrowed from the optimizer, for counting references would make this core the owner of lines that
 * others read next. Before anything that may run Python code, or lets another thread run it, they are held. */
static void hold_states(gathering_t *g, int64_t count) {
    for (; g->held < count; g->held++) Py_XINCREF(g->states[g->held]);
}

/* 1; 0 if the states are not what they usually are; -1 with an exception set. */
static int find_states(gathering_t *g, PyObject *states, PyObject *keys, Py_ssize_t *position) {
    cursor_t cursor = {*position, -1, 0};
    for (Py_ssize_t i = 0; i < g->table->count; i++) {
        PyObject *state = gradcent_next_state(states, g->table->entries[i].parameter, &cursor);
        if (!state) {
            hold_states(g, i * g->wanted);
            state = gradcent_search_state(states, g->table->entries[i].parameter, &cursor);
        }
        if (!state && PyErr_Occurred()) return -1;
        if (!state) continue;
        if (!PyDict_Check(state)) return 0;
        for (int k = 0; k < g->wanted; k++) {
            PyObject *value = PyDict_GetItemWithError(state, PyTuple_GetItem(keys, k));
            if (!value && PyErr_Occurred()) return -1;
            g->states[i * g->wanted + k] = value;
        }
    }
    if (cursor.first >= 0) *position = cursor.first;
    return 1;
}

/* ---- without: what the tensors say */

static void gather_one(gathering_t *g, int64_t i) {
    static const int operand[] = {STATE, STATE2};
    const entry_t *entry = &g->table->entries[i];
    tensor_t *t = &g->call->job.tensors[i];
    const void *parameter = gradcent_inside(entry->parameter), *gradient = gradcent_gradient(parameter);
    if (!gradient) {
        t->first = LEFT_OUT;
        return;
    }
    seen_t seen[OPERANDS], counter;
    int there[OPERANDS] = {[PARAM] = 1, [GRAD] = 1};
    const char *why;
    int good = !gradcent_see(parameter, &seen[PARAM]) && !gradcent_see(gradient, &seen[GRAD]);
    for (int k = 0; k < g->wanted && good; k++) {
        PyObject *state = g->states[i * g->wanted + k];
        const int counts = g->counted && k == g->wanted - 1;
        good = state && gradcent_type_is_plain(state) &&
               !gradcent_see(gradcent_inside(state), counts ? &counter : &seen[operand[k]]);
        if (!counts) there[operand[k]] = 1;
    }
    good = good && (!g->counted || !gradcent_fit_counter(g->call, i, &counter, &why));
    good = good && gradcent_fit(t, seen, there, entry->planned ? entry->layout : NULL, &why) == 0;
    if (!good) __atomic_store_n(&g->refused, 1, __ATOMIC_RELAXED);
}

static void gather(void *context, int64_t item) {
    gathering_t *g = context;
    const int64_t begin = item * PER_ITEM, end = begin + PER_ITEM < g->table->count ? begin + PER_ITEM : g->table->count;
    for (int64_t i = begin; i < end; i++) {
        PyObject *parameter = g->table->entries[i].parameter;
        if (!gradcent_type_is_plain(parameter)) {
            __atomic_store_n(&g->refused, 1, __ATOMIC_RELAXED);
            return;
        }
        gradcent_fetch(gradcent_inside(parameter));
        for (int k = 0; k < g->wanted; k++) {
            PyObject *state = g->states[i * g->wanted + k];
            if (state && gradcent_type_is_plain(state)) gradcent_fetch(gradcent_inside(state));
        }
    }
    for (int64_t i = begin; i < end; i++) {
        const void *gradient = gradcent_gradient(gradcent_inside(g->table->entries[i].parameter));
        if (gradient) gradcent_fetch(gradient);
    }
    for (int64_t i = begin; i < end; i++) {
        const void *parameter = gradcent_inside(g->table->entries[i].parameter), *gradient = gradcent_gradient(parameter);
        gradcent_fetch_storage(parameter);
        if (gradient) gradcent_fetch_storage(gradient);
        for (int k = 0; k < g->wanted; k++) {
            PyObject *state = g->states[i * g->wanted + k];
            if (state && gradcent_type_is_plain(state)) gradcent_fetch_storage(gradcent_inside(state));
        }
    }
    for (int64_t i = begin; i < end; i++) gather_one(g, i);
}

static void count_changes(void *context, int64_t item) {
    const gathering_t *g = context;
    const int64_t begin = item * PER_ITEM, end = begin + PER_ITEM < g->table->count ? begin + PER_ITEM : g->table->count;
    for (int64_t i = begin; i < end; i++)
        if (g->call->job.tensors[i].first != LEFT_OUT)
            gradcent_count_change(gradcent_inside(g->table->entries[i].parameter));
}

static int step(gathering_t *g) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < g->table->count; i++) {
        const tensor_t *t = &g->call->job.tensors[i];
        bytes += t->numel * (t->dtype == F64 ? 8 : t->dtype == F32 ? 4 : 2);
    }
    if (bytes < LONG_STEP) return gradcent_finish(g->call, 0);
    /* While the GIL is released somebody may clear the gradients or exchange the states; so they are held. */
    void **held = calloc((size_t)g->table->count + 1, sizeof *held);
    int status = held ? 0 : -1;
    for (int64_t i = 0; i < g->table->count && !status; i++) {
        if (g->call->job.tensors[i].first == LEFT_OUT) continue;
        held[i] = gradcent_hold(gradcent_gradient(gradcent_inside(g->table->entries[i].parameter)));
        if (!held[i]) status = -1;
    }
    hold_states(g, g->table->count * g->wanted);
    if (status)
        PyErr_NoMemory();
    else
        status = gradcent_finish(g->call, 1);
    for (int64_t i = 0; held && i < g->table->count; i++)
        if (held[i]) gradcent_let_go(held[i]);
    free(held);
    return status;
}

static void share(gathering_t *g, void (*item)(void *, int64_t)) {
    const int few = g->table->count < 8 * PER_ITEM; /* less work than waking the others */
    gradcent_share((g->table->count + PER_ITEM - 1) / PER_ITEM, few ? 1 : g->call->threads, 0, NULL, item, g);
}

/* group(name, table, parameters, states, keys, numbers) -> True: stepped; False: not for this way, nothing has
 * been touched; None: the parameters are others than the table's. The keys are those of the states, in the
 * order of the operands, the step counter's last. */
PyObject *gradcent_group(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *parameters, *states, *keys, *numbers;
    const char *name;
    int stepped;
    if (!PyArg_ParseTuple(args, "sOO!O!O!O!", &name, &capsule, &PyList_Type, &parameters, &PyDict_Type, &states,
                          &PyTuple_Type, &keys, &PyTuple_Type, &numbers))
        return NULL;
    table_t *table = PyCapsule_GetPointer(capsule, TABLE);
    if (!table) return NULL;
    if (PyList_Size(parameters) != table->count) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < table->count; i++)
        if (PyList_GetItem(parameters, i) != table->entries[i].parameter) Py_RETURN_NONE;
    if (!gradcent_has_torch_functions()) Py_RETURN_FALSE;
    call_t call;
    const int op = !strcmp(name, "sgd") ? SGD : !strcmp(name, "adam") ? ADAM : !strcmp(name, "adagrad") ? ADAGRAD : -1;
    if (op < 0) return PyErr_Format(PyExc_ValueError, "there is no step called %s", name);
    if (gradcent_begin(&call, op, numbers, table->count)) {
        gradcent_end(&call);
        return NULL;
    }
    gathering_t g = {.call = &call, .table = table, .counted = call.counters != NULL};
    g.wanted = gradcent_state_count(&call.job.rule) + g.counted;
    if (PyTuple_Size(keys) != g.wanted) {
        PyErr_Format(PyExc_ValueError, "%d keys, but %zd are given", g.wanted, PyTuple_Size(keys));
        stepped = -1;
    } else if (!(g.states = calloc((size_t)(table->count * g.wanted) + 1, sizeof *g.states))) {
        PyErr_NoMemory();
        stepped = -1;
    } else {
        stepped = g.wanted ? find_states(&g, states, keys, &table->position) : 1;
    }
    if (stepped == 1) {
        share(&g, gather);
        if (g.refused) stepped = 0;
    }
    if (stepped == 1) {
        stepped = step(&g) ? -1 : 1;
        if (stepped == 1) share(&g, count_changes);
    }
    for (int64_t k = 0; k < g.held; k++) Py_XDECREF(g.states[k]);
    free(g.states);
    gradcent_end(&call);
    return stepped < 0 ? NULL : PyBool_FromLong(stepped);
}
