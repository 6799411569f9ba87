/* Combining the operands of one tensor: same dtype, same shape, and strides that are one layout in memory order. */
#include <string.h>

#include "py_call.h"

static int is_contiguous(const tensor_view_t *view) {
    int64_t expected = 1;
    for (int d = view->ndim - 1; d >= 0; d--) {
        if (view->shape[d] != 1 && view->strides[d] != expected) return 0;
        expected *= view->shape[d];
    }
    return 1;
}

static int same_strides(const tensor_view_t *a, const tensor_view_t *b) {
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] > 1 && a->strides[d] != b->strides[d]) return 0;
    return 1;
}

int gradcent_combine(tensor_t *t, const tensor_view_t *views, const int *present, const int64_t *layout,
                     const char **why) {
    const tensor_view_t *first = NULL; /* the operand that the others are compared with */
    int contiguous = 1, aligned = 1;
    for (int k = 0; k < OPERANDS; k++) {
        if (!present[k]) continue;
        const tensor_view_t *view = &views[k];
        t->data[k] = view->data;
        contiguous &= is_contiguous(view);
        if (!first) {
            first = view;
            continue;
        }
        if (view->dtype != first->dtype) {
            *why = "parameter, gradient and state differ in dtype";
            return -1;
        }
        if (view->ndim != first->ndim || memcmp(view->shape, first->shape, (size_t)view->ndim * sizeof(int64_t))) {
            *why = "parameter, gradient and state differ in shape";
            return -1;
        }
        aligned &= same_strides(first, view);
    }
    t->dtype = (uint8_t)first->dtype;
    t->numel = 1;
    for (int d = 0; d < first->ndim; d++) t->numel *= first->shape[d];
    if (t->numel == 0) return 0;
    t->centralized = layout != NULL;
    if (layout && layout[0] * layout[1] * layout[2] * layout[3] != t->numel) {
        *why = "the layout has another number of elements than the tensor";
        return -1;
    }
    if (contiguous) {
        t->batch = layout ? layout[0] : 1;
        t->outer = layout ? layout[1] : 1;
        t->vectors = layout ? layout[2] : 1;
        t->inner = layout ? layout[3] : t->numel;
        return 0;
    }
    return !aligned || gradcent_memory_order(t, first->ndim, first->shape, first->strides, layout) ? 1 : 0;
}
