/* From Python lists of tensors to tensor_t, without torch's headers. Torch shows its tensors to other
 * libraries through DLPack's table of C functions (torch 2.10 and later), a few nanoseconds each and no
 * ownership taken; older versions are asked through Python. Everything is read anew on every call, so
 * there is no cache to go stale when a gradient, a parameter or a state moves. */
#include <string.h>

#include "operands.h"

/* The parts of DLPack 1.x that are used here; its ABI is fixed. */
typedef struct {
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dltensor_t;
typedef int (*export_t)(void *, dltensor_t *);
typedef struct {
    struct { uint32_t major, minor; } version;
    void *previous;
    void *allocate, *export_owned, *import;
    export_t export;
    void *stream;
} exchange_t;

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };
#define MAX_DIMS 64

PyObject *gradcent_unsupported;
static PyObject *tensor_types, *describe, *zeros_like, *names[4];
static export_t export;

int gradcent_operands_setup(PyObject *types, PyObject *exchange, PyObject *describe_in_python, PyObject *make) {
    static const char *const layout_names[4] = {"batch", "outer", "vectors", "inner"};
    for (int k = 0; k < 4; k++)
        if (!names[k] && !(names[k] = PyUnicode_InternFromString(layout_names[k]))) return -1;
    export = NULL;
    if (exchange != Py_None) {
        const exchange_t *table = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
        if (!table) return -1;
        if (table->version.major == 1) export = table->export;
    }
    Py_INCREF(types), tensor_types = types;
    Py_INCREF(describe_in_python), describe = describe_in_python;
    Py_INCREF(make), zeros_like = make;
    return 0;
}

typedef struct {
    char *data;
    int ndim, dtype;
    const int64_t *shape, *strides; /* into the tensor itself, or into `own` */
    int64_t own[2 * MAX_DIMS];
} seen_t;

static int type_is_plain(PyObject *tensor) {
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    for (Py_ssize_t k = 0; k < PyTuple_Size(tensor_types); k++)
        if (type == PyTuple_GetItem(tensor_types, k)) return 1;
    return 0;
}

/* describe(tensor) -> (pointer, dtype code or -1, shape, strides), or an exception. */
static int look_through_python(PyObject *tensor, seen_t *seen) {
    PyObject *found = PyObject_CallFunctionObjArgs(describe, tensor, NULL);
    if (!found) return -1;
    PyObject *shape, *strides;
    unsigned long long pointer;
    int good = PyArg_ParseTuple(found, "KiO!O!", &pointer, &seen->dtype, &PyTuple_Type, &shape, &PyTuple_Type, &strides);
    if (good && PyTuple_Size(shape) > MAX_DIMS) seen->dtype = -1;
    if (good && seen->dtype >= 0) {
        seen->data = (char *)(uintptr_t)pointer;
        seen->ndim = (int)PyTuple_Size(shape);
        seen->shape = seen->own;
        seen->strides = seen->own + MAX_DIMS;
        for (int d = 0; d < seen->ndim; d++) {
            seen->own[d] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
            seen->own[MAX_DIMS + d] = PyLong_AsLongLong(PyTuple_GetItem(strides, d));
        }
    }
    Py_DECREF(found);
    return good && !PyErr_Occurred() ? 0 : -1;
}

static int look(PyObject *tensor, seen_t *seen) {
    if (!export || !type_is_plain(tensor)) return look_through_python(tensor, seen);
    dltensor_t dl;
    if (export(tensor, &dl)) { /* torch's own refusal, such as a tensor without memory */
        PyErr_Clear();
        return look_through_python(tensor, seen);
    }
    seen->data = (char *)dl.data + dl.byte_offset;
    seen->ndim = dl.ndim;
    seen->shape = dl.shape;
    seen->strides = dl.strides;
    seen->dtype = -1;
    if (dl.device.type == DL_CPU && dl.dtype.lanes == 1 && dl.ndim <= MAX_DIMS) {
        if (dl.dtype.code == DL_FLOAT)
            seen->dtype = dl.dtype.bits == 32 ? F32 : dl.dtype.bits == 64 ? F64 : dl.dtype.bits == 16 ? F16 : -1;
        else if (dl.dtype.code == DL_BFLOAT && dl.dtype.bits == 16)
            seen->dtype = BF16;
    }
    return 0;
}

int gradcent_is_plain(PyObject *tensor) {
    seen_t seen;
    if (!type_is_plain(tensor)) return 0;
    if (look(tensor, &seen)) {
        PyErr_Clear();
        return 0;
    }
    return seen.dtype >= 0;
}

static int refuse(Py_ssize_t index, const char *what) {
    PyErr_Format(gradcent_unsupported, "tensor %zd: %s", index, what);
    return -1;
}

static int read_layout(PyObject *layout, int64_t out[4]) {
    for (int k = 0; k < 4; k++) {
        PyObject *value = PyObject_GetAttr(layout, names[k]);
        if (!value) return -1;
        out[k] = PyLong_AsLongLong(value);
        Py_DECREF(value);
        if (out[k] < 0) return PyErr_Occurred() ? -1 : refuse(0, "negative layout");
    }
    return 0;
}

static int contiguous(const seen_t *seen) {
    int64_t expected = 1;
    for (int d = seen->ndim - 1; d >= 0; d--) {
        if (seen->shape[d] != 1 && seen->strides[d] != expected) return 0;
        expected *= seen->shape[d];
    }
    return 1;
}

static int same_strides(const seen_t *a, const seen_t *b) {
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] > 1 && a->strides[d] != b->strides[d]) return 0;
    return 1;
}

/* 0: read; 1: dims in an order that the kernels cannot follow; -1: exception set. */
static int read_one(tensor_t *t, operands_t *operands, Py_ssize_t index, const int64_t *layout) {
    seen_t seen[OPERANDS];
    int guide = -1, all_contiguous = 1, aligned = 1; /* the guide is the operand the others must agree with */
    for (int k = 0; k < OPERANDS; k++) {
        if (!operands->list[k]) continue;
        PyObject *tensor = PyList_GetItem(operands->list[k], index);
        if (!tensor) return -1;
        if (tensor == Py_None && k == operands->allocate) continue; /* made later, like the parameter */
        if (tensor == Py_None && k == PARAM) continue;              /* centralize without a weight */
        if (look(tensor, &seen[k])) return -1;
        if (seen[k].dtype < 0) return refuse(index, "not a dense CPU tensor of float32, float64, bfloat16 or float16");
        t->data[k] = seen[k].data;
        all_contiguous &= contiguous(&seen[k]);
        if (guide < 0) {
            guide = k;
            continue;
        }
        if (seen[k].dtype != seen[guide].dtype) return refuse(index, "parameter, gradient and state differ in dtype");
        if (seen[k].ndim != seen[guide].ndim ||
            memcmp(seen[k].shape, seen[guide].shape, (size_t)seen[k].ndim * sizeof(int64_t)))
            return refuse(index, "parameter, gradient and state differ in shape");
        aligned &= same_strides(&seen[guide], &seen[k]);
    }
    const seen_t *s = &seen[guide];
    t->dtype = (uint8_t)s->dtype;
    t->numel = 1;
    for (int d = 0; d < s->ndim; d++) t->numel *= s->shape[d];
    if (t->numel == 0) return 0;
    t->centred = layout != NULL;
    if (layout && layout[0] * layout[1] * layout[2] * layout[3] != t->numel)
        return refuse(index, "the layout has another number of elements than the tensor");
    if (all_contiguous) {
        t->batch = layout ? layout[0] : 1;
        t->outer = layout ? layout[1] : 1;
        t->vectors = layout ? layout[2] : 1;
        t->inner = layout ? layout[3] : t->numel;
        return 0;
    }
    return !aligned || gradcent_arrange(t, s->ndim, s->shape, s->strides, layout) ? 1 : 0;
}

int gradcent_read_operands(job_t *job, operands_t *operands, PyObject *left_out) {
    PyObject *last = NULL;
    int64_t layout[4] = {0, 0, 0, 0};
    for (Py_ssize_t index = 0; index < job->tensor_count; index++) {
        tensor_t *t = &job->tensors[index];
        PyObject *item = PyList_GetItem(operands->layouts, index);
        if (!item) return -1;
        if (item != Py_None && item != last) { /* layers of one shape often share one object */
            if (read_layout(item, layout)) return -1;
            last = item;
        }
        int status = read_one(t, operands, index, item == Py_None ? NULL : layout);
        if (status < 0) return -1;
        if (status > 0) {
            t->numel = 0;
            PyObject *number = PyLong_FromSsize_t(index);
            int failed = !number || PyList_Append(left_out, number);
            Py_XDECREF(number);
            if (failed) return -1;
        }
    }
    if (operands->allocate < 0) return 0;
    for (Py_ssize_t index = 0; index < job->tensor_count; index++) {
        if (PyList_GetItem(operands->list[operands->allocate], index) != Py_None) continue;
        tensor_t *t = &job->tensors[index];
        t->first = 1;
        if (t->numel == 0) {
            /* An empty tensor still gets its empty buffer, as torch gives it one; one that is left out
             * gets its buffer from whoever handles it. */
            PyObject *number = PyLong_FromSsize_t(index);
            int handled = number ? PySequence_Contains(left_out, number) : -1;
            Py_XDECREF(number);
            if (handled < 0) return -1;
            if (handled) continue;
        }
        PyObject *made = PyObject_CallFunctionObjArgs(zeros_like, PyList_GetItem(operands->list[PARAM], index), NULL);
        seen_t seen;
        if (!made || look(made, &seen)) {
            Py_XDECREF(made);
            return -1;
        }
        t->data[operands->allocate] = seen.data;
        if (PyList_SetItem(operands->list[operands->allocate], index, made)) return -1;
    }
    return 0;
}

int gradcent_read_steps(PyObject *list, Py_ssize_t count, void **pointers, uint8_t *dtypes) {
    for (Py_ssize_t index = 0; index < count; index++) {
        seen_t seen;
        PyObject *tensor = PyList_GetItem(list, index);
        if (!tensor || look(tensor, &seen)) return -1;
        if (seen.dtype != F32 && seen.dtype != F64) return refuse(index, "its step counter is not a float on the CPU");
        for (int d = 0; d < seen.ndim; d++)
            if (seen.shape[d] != 1) return refuse(index, "its step counter is not a single number");
        pointers[index] = seen.data;
        dtypes[index] = (uint8_t)seen.dtype;
    }
    return 0;
}
