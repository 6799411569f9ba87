/* Reading a torch tensor from C through documented interfaces only: the data pointer, dtype, shape and strides come
 * from DLPack's C exchange table (`Tensor.__dlpack_c_exchange_api__`, torch 2.10 and later), about 0.1 microseconds
 * a tensor without allocation. Nothing is cached between calls, so nothing becomes stale when a gradient is freed,
 * a parameter moves or a checkpoint is loaded. */
#include "tensor_view.h"

/* The parts of DLPack 1 that are used here; its ABI is fixed. */
typedef struct {
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dltensor_t;
typedef int (*dltensor_from_object_t)(void *object, dltensor_t *out);
typedef struct {
    struct { uint32_t major, minor; } version;
    void *previous;
    void *allocate, *managed_from_object, *managed_to_object;
    dltensor_from_object_t dltensor_from_object;
    void *current_stream;
} exchange_t;

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

static dltensor_from_object_t read_dltensor;
static PyObject *plain_types[2], *is_neg, *dispatch_name, *plain_dispatch;

int gradcent_view_setup(PyObject *tensor_type, PyObject *parameter_type, PyObject *exchange) {
    const exchange_t *table = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
    if (!table) return -1;
    if (table->version.major != 1) {
        PyErr_Format(PyExc_ImportError, "version %u of DLPack's exchange table is unknown", (unsigned)table->version.major);
        return -1;
    }
    read_dltensor = table->dltensor_from_object;
    Py_INCREF(tensor_type), plain_types[0] = tensor_type;
    Py_INCREF(parameter_type), plain_types[1] = parameter_type;
    dispatch_name = PyUnicode_InternFromString("__torch_dispatch__");
    is_neg = PyObject_GetAttrString(tensor_type, "is_neg");
    plain_dispatch = dispatch_name ? PyObject_GetAttr(tensor_type, dispatch_name) : NULL;
    return is_neg && plain_dispatch ? 0 : -1;
}

int gradcent_has_plain_type(PyObject *tensor) {
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    if (type == plain_types[0] || type == plain_types[1]) return 1;
    int is_tensor = PyObject_IsInstance(tensor, plain_types[0]);
    if (is_tensor <= 0) return is_tensor;
    PyObject *dispatch = PyObject_GetAttr(type, dispatch_name);
    const int same = dispatch == plain_dispatch;
    Py_XDECREF(dispatch);
    return dispatch ? same : -1;
}

int gradcent_is_plain(PyObject *tensor) {
    const int plain = gradcent_has_plain_type(tensor);
    if (plain <= 0) return plain;
    PyObject *negated = PyObject_CallFunctionObjArgs(is_neg, tensor, NULL); /* DLPack does not report it */
    if (!negated) return -1;
    Py_DECREF(negated);
    return negated == Py_False;
}

int gradcent_view_shape(PyObject *tensor, int *ndim, const int64_t **shape) {
    dltensor_t dl;
    if (read_dltensor(tensor, &dl)) {
        PyErr_Clear();
        return -1;
    }
    *ndim = dl.ndim;
    *shape = dl.shape;
    return 0;
}

int gradcent_view_any_device(PyObject *tensor, tensor_view_t *view) {
    dltensor_t dl;
    if (read_dltensor(tensor, &dl)) { /* torch's refusal: sparse, quantized, meta and others */
        PyErr_Clear();
        return -1;
    }
    view->data = (char *)dl.data + dl.byte_offset;
    view->ndim = dl.ndim;
    view->shape = dl.shape;
    view->strides = dl.strides;
    view->device_type = dl.device.type;
    view->device_id = dl.device.id;
    view->dtype = -1;
    if (dl.dtype.lanes != 1 || dl.ndim > MAX_DIMS || (dl.ndim > 0 && !dl.strides)) return -1;
    if (dl.dtype.code == DL_FLOAT)
        view->dtype = dl.dtype.bits == 32 ? F32 : dl.dtype.bits == 64 ? F64 : dl.dtype.bits == 16 ? F16 : -1;
    else if (dl.dtype.code == DL_BFLOAT && dl.dtype.bits == 16)
        view->dtype = BF16;
    if (view->dtype < 0) return -1;
    if (dl.data) return 0;
    for (int d = 0; d < view->ndim; d++)
        if (view->shape[d] == 0) return 0;
    return -1; /* elements without memory, such as autograd's unmaterialized zeros */
}

int gradcent_view(PyObject *tensor, tensor_view_t *view) {
    return gradcent_view_any_device(tensor, view) || view->device_type != DL_CPU ? -1 : 0;
}
