/* A layout in memory order. Any dense order of dims (channels-last, transposed) is again a view
 * (batch, outer, vectors, inner) if averaged and kept dims alternate at most that often. */
#include "gradcent.h"

#define MAX_PARTS 64
#define BATCH 0 /* the first of the four roles of a dim: batch, outer, vectors, inner */

typedef struct {
    int64_t size, stride;
    int averaged;
} part_t;

/* Cut the dims of the tensor at the borders of the layout; returns the number of parts or -1. */
static int cut(int ndim, const int64_t *shape, const int64_t *strides, const int64_t layout[4], part_t *parts) {
    int count = 0, role = BATCH;
    int64_t left = layout[BATCH];
    for (int dim = 0; dim < ndim; dim++) {
        int64_t size = shape[dim];
        while (size > 1) {
            while (left == 1 && role < 3) left = layout[++role];
            int64_t piece = size < left ? size : left;
            if (piece <= 1 || size % piece || left % piece || count == MAX_PARTS) return -1;
            size /= piece;
            left /= piece;
            parts[count++] = (part_t){piece, strides[dim] * size, role == 1 || role == 3};
        }
    }
    return count;
}

/* Returns 0, or -1 if the strides are no such view: then the caller makes a contiguous copy. */
int gradcent_memory_order(tensor_t *tensor, int ndim, const int64_t *shape, const int64_t *strides,
                          const int64_t layout[4]) {
    part_t parts[MAX_PARTS];
    const int64_t whole[4] = {1, 1, 1, tensor->numel};
    int count = cut(ndim, shape, strides, layout ? layout : whole, parts);
    if (count < 0) return -1;
    for (int i = 1; i < count; i++) /* outermost in memory first */
        for (int j = i; j > 0 && parts[j - 1].stride < parts[j].stride; j--) {
            part_t other = parts[j];
            parts[j] = parts[j - 1];
            parts[j - 1] = other;
        }
    int64_t expected = 1, sizes[4] = {1, 1, 1, 1};
    int role = 3;
    for (int i = count - 1; i >= 0; i--) {
        if (parts[i].stride != expected) return -1; /* gaps or overlaps */
        expected *= parts[i].size;
        while (role >= 0 && (role == 1 || role == 3) != parts[i].averaged) role--;
        if (role < 0) return -1;
        sizes[role] *= parts[i].size;
    }
    tensor->batch = sizes[0];
    tensor->outer = sizes[1];
    tensor->vectors = sizes[2];
    tensor->inner = sizes[3];
    return 0;
}

