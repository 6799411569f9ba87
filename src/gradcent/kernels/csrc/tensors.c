/* A tensor of torch, seen from C without torch's headers: where its memory is, how it is ordered, what
 * its gradient is. Nothing is remembered from one call to the next, so nothing goes stale when a gradient
 * is freed, a parameter moves or a checkpoint is loaded. There are three ways, the fastest that works:
 *
 * 1. Functions that torch's libraries export, called by address, 2 or 3 ns each, on the at::Tensor that
 *    lies in a Python tensor at a certain offset. Python looks them up, finds the offset and compares what
 *    they say with what torch says (../_torch_functions.py); if anything differs they are not used.
 * 2. DLPack's table of C functions (torch 2.10 and later), 0.1 µs a tensor.
 * 3. Python, 1 µs a tensor. */
#include <string.h>

#include "tensors.h"

/* A function pointer and an object pointer need not be alike in C, but an address from dlsym is both. */
#define AS_FUNCTION(type, pointer) ((union { void *object; type function; }){.object = (pointer)}.function)

static PyObject *plain_types[2], *describe;

/* ---- torch's own functions; a tensor is an `at::Tensor *`, whose only member points to a TensorImpl */

typedef const void *(*gradient_t)(const void *impl);
typedef _Bool (*ask_t)(const void *tensor);
typedef void (*tell_t)(const void *tensor);
typedef int32_t (*get_t)(const void *tensor, void *value);
typedef int32_t (*let_go_t)(void *held);

enum { GRADIENT, IS_NEGATED, HAS_DISPATCH, IS_INFERENCE, COUNT_CHANGE, DATA, DIM, SIZES, STRIDES, DTYPE, DEVICE, HOLD, LET_GO, FUNCTIONS };

static struct {
    int usable;
    Py_ssize_t offset;
    gradient_t gradient;
    ask_t is_negated, has_dispatch, is_inference;
    tell_t count_change;
    let_go_t let_go;
    get_t get[FUNCTIONS];
    const void *ordinary, *none; /* the vtable of an ordinary TensorImpl; the TensorImpl of "no gradient" */
    int32_t cpu, dtypes[4];
} torch;

static const void *impl_of(const void *tensor) { return *(const void *const *)tensor; }
static const void *vtable_of(const void *tensor) { return *(const void *const *)impl_of(tensor); }

int gradcent_has_torch_functions(void) { return torch.usable; }
const void *gradcent_inside(PyObject *tensor) { return (const char *)tensor + torch.offset; }

const void *gradcent_gradient(const void *tensor) {
    const void *gradient = torch.gradient(impl_of(tensor));
    return impl_of(gradient) == torch.none ? NULL : gradient;
}

void gradcent_fetch(const void *tensor) {
    const char *impl = impl_of(tensor);
    __builtin_prefetch(impl);
    __builtin_prefetch(impl + 64);
    __builtin_prefetch(impl + 128);
    __builtin_prefetch(impl + 176);
}

/* Behind the vtable and the reference count lies the storage; should it ever lie elsewhere, only the hint is lost. */
void gradcent_fetch_storage(const void *tensor) {
    const char *storage = ((const char *const *)impl_of(tensor))[2];
    __builtin_prefetch(storage);
    __builtin_prefetch(storage + 60);
}

int gradcent_see(const void *tensor, seen_t *seen) {
    int64_t dim;
    int32_t device, dtype;
    /* Another class inside (sparse, quantized, opaque), a Python class that is more than its memory (DTensor,
     * fake tensors), or a view that says it is the negative of its memory. */
    if (vtable_of(tensor) != torch.ordinary || torch.has_dispatch(tensor) || torch.is_negated(tensor)) return -1;
    if (torch.get[DEVICE](tensor, &device) || device != torch.cpu || torch.get[DTYPE](tensor, &dtype)) return -1;
    seen->dtype = dtype == torch.dtypes[F32] ? F32 : dtype == torch.dtypes[F64] ? F64 : dtype == torch.dtypes[BF16] ? BF16 : F16;
    if (dtype != torch.dtypes[seen->dtype]) return -1;
    if (torch.get[DIM](tensor, &dim) || dim > MAX_DIMS) return -1;
    seen->ndim = (int)dim;
    if (torch.get[SIZES](tensor, &seen->shape) || torch.get[STRIDES](tensor, &seen->strides)) return -1;
    if (torch.get[DATA](tensor, &seen->data)) return -1;
    if (seen->data) return 0;
    for (int d = 0; d < seen->ndim; d++)
        if (seen->shape[d] == 0) return 0;
    return -1; /* elements, but no memory */
}

void gradcent_count_change(const void *tensor) {
    if (!torch.is_inference(tensor)) torch.count_change(tensor); /* those made under inference mode keep no count */
}

void *gradcent_hold(const void *tensor) {
    void *held;
    return torch.get[HOLD](tensor, &held) ? NULL : held;
}

void gradcent_let_go(void *held) { torch.let_go(held); }

/* torch_functions((offset, addresses, a parameter without gradient, tensors of the four dtypes)), or None to
 * do without. The caller finds out whether what they say is true. */
PyObject *gradcent_torch_functions(PyObject *self, PyObject *argument) {
    (void)self;
    torch.usable = 0;
    if (argument == Py_None) Py_RETURN_NONE;
    PyObject *addresses, *parameter, *samples;
    Py_ssize_t offset;
    void *address[FUNCTIONS];
    if (!PyArg_ParseTuple(argument, "nO!OO!", &offset, &PyTuple_Type, &addresses, &parameter, &PyTuple_Type, &samples))
        return NULL;
    if (PyTuple_Size(addresses) != FUNCTIONS || PyTuple_Size(samples) != 4) {
        PyErr_SetString(PyExc_ValueError, "an address for each function, a tensor for each dtype");
        return NULL;
    }
    for (int k = 0; k < FUNCTIONS; k++) {
        address[k] = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, k));
        if (!address[k]) return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "a function is missing"), NULL);
        torch.get[k] = AS_FUNCTION(get_t, address[k]);
    }
    torch.offset = offset;
    torch.gradient = AS_FUNCTION(gradient_t, address[GRADIENT]);
    torch.is_negated = AS_FUNCTION(ask_t, address[IS_NEGATED]);
    torch.has_dispatch = AS_FUNCTION(ask_t, address[HAS_DISPATCH]);
    torch.is_inference = AS_FUNCTION(ask_t, address[IS_INFERENCE]);
    torch.count_change = AS_FUNCTION(tell_t, address[COUNT_CHANGE]);
    torch.let_go = AS_FUNCTION(let_go_t, address[LET_GO]);
    const void *sample = gradcent_inside(parameter);
    torch.ordinary = vtable_of(sample);
    torch.none = impl_of(torch.gradient(impl_of(sample)));
    int failed = torch.get[DEVICE](sample, &torch.cpu);
    for (int k = 0; k < 4; k++) failed |= torch.get[DTYPE](gradcent_inside(PyTuple_GetItem(samples, k)), &torch.dtypes[k]);
    torch.usable = !failed;
    Py_RETURN_NONE;
}

/* count_changes(tensors) -> False, and nothing done, if Python has to do it. */
PyObject *gradcent_count_changes(PyObject *self, PyObject *tensors) {
    (void)self;
    const Py_ssize_t count = PyList_Size(tensors);
    if (count < 0) return NULL;
    for (Py_ssize_t k = 0; k < count; k++)
        if (!torch.usable || !gradcent_type_is_plain(PyList_GetItem(tensors, k))) Py_RETURN_FALSE;
    for (Py_ssize_t k = 0; k < count; k++) gradcent_count_change(gradcent_inside(PyList_GetItem(tensors, k)));
    Py_RETURN_TRUE;
}

/* ---- DLPack: the parts of version 1 that are used here; its ABI is fixed */

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

static export_t export;

static int look_through_dlpack(PyObject *tensor, seen_t *seen) {
    dltensor_t dl;
    if (export(tensor, &dl)) { /* torch's own refusal, such as a tensor without memory */
        PyErr_Clear();
        return -1;
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

/* ---- Python: describe(tensor) -> (pointer, dtype code or -1, shape, strides), or an exception */

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

/* ---- whichever there is */

int gradcent_tensors_setup(PyObject *types, PyObject *exchange, PyObject *describe_in_python) {
    export = NULL;
    if (exchange != Py_None) {
        const exchange_t *table = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
        if (!table) return -1;
        if (table->version.major == 1) export = table->export;
    }
    for (int k = 0; k < 2; k++) {
        PyObject *type = PyTuple_GetItem(types, k);
        if (!type) return -1;
        Py_INCREF(type), plain_types[k] = type;
    }
    Py_INCREF(describe_in_python), describe = describe_in_python;
    return 0;
}

int gradcent_type_is_plain(PyObject *tensor) {
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    return type == plain_types[0] || type == plain_types[1];
}

int gradcent_look(PyObject *tensor, seen_t *seen) {
    if (gradcent_type_is_plain(tensor)) {
        if (torch.usable && !gradcent_see(gradcent_inside(tensor), seen)) return 0;
        if (!torch.usable && export && !look_through_dlpack(tensor, seen)) return 0;
    }
    return look_through_python(tensor, seen);
}

int gradcent_is_plain(PyObject *tensor) {
    seen_t seen;
    if (!gradcent_type_is_plain(tensor)) return 0;
    if (gradcent_look(tensor, &seen)) {
        PyErr_Clear();
        return 0;
    }
    return seen.dtype >= 0;
}

/* look_at(tensor) -> (address, dtype code, shape, strides, the gradient's address or None) as torch's functions
 * have it, or None if the tensor is not an ordinary one. For checking them. */
PyObject *gradcent_look_at(PyObject *self, PyObject *tensor) {
    (void)self;
    seen_t seen, gradient;
    if (!torch.usable || gradcent_see(gradcent_inside(tensor), &seen)) Py_RETURN_NONE;
    void *held = gradcent_hold(gradcent_inside(tensor));
    const int same = held && impl_of(held) == impl_of(gradcent_inside(tensor));
    if (held) gradcent_let_go(held);
    if (!same) Py_RETURN_NONE;
    PyObject *shape = PyTuple_New(seen.ndim), *strides = PyTuple_New(seen.ndim), *found = NULL;
    int failed = !shape || !strides;
    for (int d = 0; d < seen.ndim && !failed; d++)
        failed = PyTuple_SetItem(shape, d, PyLong_FromLongLong(seen.shape[d])) ||
                 PyTuple_SetItem(strides, d, PyLong_FromLongLong(seen.strides[d]));
    const void *inside = gradcent_gradient(gradcent_inside(tensor));
    if (failed) {
    } else if (!inside || gradcent_see(inside, &gradient)) {
        found = Py_BuildValue("NiOOO", PyLong_FromVoidPtr(seen.data), seen.dtype, shape, strides, Py_None);
    } else {
        found = Py_BuildValue("NiOON", PyLong_FromVoidPtr(seen.data), seen.dtype, shape, strides,
                              PyLong_FromVoidPtr(gradient.data));
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return found;
}
