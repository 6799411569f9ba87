"""The Triton kernels: two shapes of the same step, and one that advances step counters on the device.

- `rows_kernel`: weight vectors that are contiguous and fit a tile. Each element is read once. The tile stays
  in registers for the mean, the second pass of the mean and the update. Tensors without a layout are rows
  without a mean.
- `columns_kernel`: neighbouring vectors are contiguous (weights stored as (in, out), transposed
  convolutions), or a row is longer than the tile. Two passes: one for the mean, one for the update. The
  second pass reads g (and w) again.
- `rates_kernel`: increments the step counters of Adam and Adagrad and computes the learning rates from them.

A launch serves many tensors. A program reads its task (tensor, batch, first vector), then the tensor's
pointers and sizes. Everything that decides the shape of the code is a `constexpr` chosen on the host
(triton_tasks.py), so no kernel divides integers and the compiler knows which accesses are contiguous and
aligned. This module imports Triton: import it on demand.
"""
# Triton kernels are Python in syntax only: their arguments have no types that mypy knows.
# mypy: ignore-errors

import triton
import triton.language as tl

# update rules
CENTRALIZE = tl.constexpr(0)
PLAIN = tl.constexpr(1)
MOMENTUM = tl.constexpr(2)
NESTEROV = tl.constexpr(3)
ADAM = tl.constexpr(4)
ADAGRAD = tl.constexpr(5)
# weight decay: part of the projected gradient, added after the projection, or applied to the weight
NO_DECAY = tl.constexpr(0)
PROJECTED = tl.constexpr(1)
COUPLED = tl.constexpr(2)
DECOUPLED = tl.constexpr(3)
# columns of the pointer table and of the shape table
POINTERS = tl.constexpr(
    8
)  # weight, gradient, first state (or output), second state, step counter, three for the host
SIZES = tl.constexpr(4)


@triton.jit
def compute_update(
    x, w, m, v, rate, bias_scale, shrink, momentum, grad_weight, beta2, one_minus_beta2, eps,
    RULE: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """The optimizer's rule: the change of the weight and the new states, from the centralized gradient x."""
    if RULE == PLAIN:
        d = -rate * x
    elif RULE == MOMENTUM:
        m = momentum * m + grad_weight * x
        d = -rate * m
    elif RULE == NESTEROV:
        m = momentum * m + grad_weight * x
        d = -rate * (x + momentum * m)
    elif RULE == ADAM:
        m = m + grad_weight * (x - m)
        v = beta2 * v + one_minus_beta2 * x * x
        d = -rate * m / (tl.sqrt(v) * bias_scale + eps)
    else:
        m = m + x * x
        d = -rate * x / (tl.sqrt(m) + eps)
    if DECAY == DECOUPLED:
        d = d - shrink * w
    return d, m, v


@triton.jit
def as_scalar(value, ACC: tl.constexpr):
    """A hyperparameter in the type of the arithmetic; in the interpreter `tl.cast` would round it to float32."""
    return tl.full([], value, dtype=ACC)


@triton.jit
def load_tile(pointer, offset, inside, ACC: tl.constexpr):
    """Load a tile in the type of the arithmetic; elements outside are 0."""
    return tl.load(pointer + offset, mask=inside, other=0.0).to(ACC)


@triton.jit
def sum_vectors(x):
    """Sum over the first and the last dim of a tile (outer, vectors, inner)."""
    return tl.sum(tl.sum(x, 0, keep_dims=True), 2, keep_dims=True)


@triton.jit
def divide_rounded(a, b):
    """a / b, correctly rounded: Triton's float32 division is not, and its `div_rn` does not take float64."""
    return a / b if a.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def vector_means(x, inside, count, SIZE: tl.constexpr):
    """The mean of each vector of a tile as a sum of two numbers; `x - high - low` of a constant vector is exactly 0.

    `high` is off by a few units in the last place of x. For a constant vector x - high is a small multiple of such a
    unit, its sum is exact, and a correctly rounded division gives it back. Scaling by a power of two keeps the first
    sum from overflowing where the mean does not.
    """
    high = divide_rounded(sum_vectors(x * (1.0 / SIZE)), count * (1.0 / SIZE))
    low = divide_rounded(sum_vectors(tl.where(inside, x - high, 0.0)), count)
    return high, low


@triton.jit
def load_pointers(table, tensor, T: tl.constexpr, ALIGNED: tl.constexpr):
    """The pointers of a tensor's weight, gradient, first and second state."""
    row = table + tensor.to(tl.int64) * POINTERS
    w = tl.load(row).to(tl.pointer_type(T))
    g = tl.load(row + 1).to(tl.pointer_type(T))
    m = tl.load(row + 2).to(tl.pointer_type(T))
    v = tl.load(row + 3).to(tl.pointer_type(T))
    if ALIGNED:  # the host checked that these and all sizes are multiples of 16 bytes
        w, g, m, v = (
            tl.multiple_of(w, 16),
            tl.multiple_of(g, 16),
            tl.multiple_of(m, 16),
            tl.multiple_of(v, 16),
        )
    return w, g, m, v


@triton.jit
def load_scale(grad_scale, found_inf, ACC: tl.constexpr, SCALED: tl.constexpr):
    """The factor that unscales a gradient, and whether a GradScaler lets the step happen."""
    unscale = tl.full([], 1.0, dtype=ACC)
    enabled = tl.full([], 1, dtype=tl.int1)
    if SCALED:
        unscale = divide_rounded(unscale, tl.load(grad_scale).to(ACC))
        enabled = tl.load(found_inf) == 0.0
    return unscale, enabled


@triton.jit
def load_rates(
    rates, tensor, rate, bias_scale, shrink, decay, RULE: tl.constexpr, DEVICE_RATES: tl.constexpr
):
    """The numbers that may live on the device: per tensor those of `rates_kernel`; the decay of CENTRALIZE."""
    if DEVICE_RATES:
        if RULE == CENTRALIZE:
            decay = tl.load(rates)
        else:
            rates += tensor.to(tl.int64) * 3
            rate, bias_scale, shrink = tl.load(rates), tl.load(rates + 1), tl.load(rates + 2)
    return rate, bias_scale, shrink, decay


@triton.jit
def load_gradient(
    g_ptr, offset, inside, unscale, ACC: tl.constexpr, MAXIMIZE: tl.constexpr, SCALED: tl.constexpr
):
    """The gradient that the step descends: unscaled, and negated for `maximize`."""
    g = load_tile(g_ptr, offset, inside, ACC)
    if SCALED:
        g = g * unscale
        tl.store(g_ptr + offset, g.to(g_ptr.dtype.element_ty), mask=inside)  # as torch's fused steps do
    return -g if MAXIMIZE else g


@triton.jit
def load_states(m_ptr, v_ptr, offset, inside, like, ACC: tl.constexpr, RULE: tl.constexpr):
    """The optimizer's states that the rule has; `like` stands in for the others."""
    m, v = like, like
    if RULE >= MOMENTUM:
        m = load_tile(m_ptr, offset, inside, ACC)
    if RULE == ADAM:
        v = load_tile(v_ptr, offset, inside, ACC)
    return m, v


@triton.jit
def store_step(w_ptr, m_ptr, v_ptr, offset, inside, w, m, v, T: tl.constexpr, RULE: tl.constexpr):
    """Store the new weight and states."""
    tl.store(w_ptr + offset, w.to(T), mask=inside)
    if RULE >= MOMENTUM:
        tl.store(m_ptr + offset, m.to(T), mask=inside)
    if RULE == ADAM:
        tl.store(v_ptr + offset, v.to(T), mask=inside)


@triton.jit
def rows_kernel(
    pointers, shapes, tasks, rates, grad_scale, found_inf,
    rate: tl.float64, bias_scale: tl.float64, shrink: tl.float64, decay: tl.float64, momentum: tl.float64,
    grad_weight: tl.float64, beta2: tl.float64, one_minus_beta2: tl.float64, eps: tl.float64,
    T: tl.constexpr, ACC: tl.constexpr, RULE: tl.constexpr, DECAY: tl.constexpr, UPDATE: tl.constexpr,
    MAXIMIZE: tl.constexpr, SCALED: tl.constexpr, DEVICE_RATES: tl.constexpr, ALIGNED: tl.constexpr,
    CENTRALIZED: tl.constexpr, ROWS: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """ROWS weight vectors of up to LENGTH elements, read once; or LENGTH elements of a tensor without a layout."""
    task = tasks + 3 * tl.program_id(0)
    tensor, first = tl.load(task), tl.load(task + 2)
    sizes = shapes + tensor.to(tl.int64) * SIZES
    length, numel = tl.load(sizes).to(tl.int32), tl.load(sizes + 1)
    w_ptr, g_ptr, m_ptr, v_ptr = load_pointers(pointers, tensor, T, ALIGNED)
    vector_elements: tl.constexpr = 128 // T.primitive_bitwidth  # of one 128-bit access
    start = first.to(tl.int64) * length
    left = tl.minimum(numel - start, ROWS * LENGTH).to(tl.int32)
    if ALIGNED:
        length, left = tl.multiple_of(length, vector_elements), tl.multiple_of(left, vector_elements)
        start = tl.multiple_of(start, vector_elements)
    j = tl.arange(0, LENGTH)[None, None, :]
    offset = tl.arange(0, ROWS)[None, :, None] * length + j
    inside = j < length
    if not CENTRALIZED:
        inside = j < left
    elif ROWS > 1:
        inside = inside & (offset < left)
    w_ptr, g_ptr, m_ptr, v_ptr = w_ptr + start, g_ptr + start, m_ptr + start, v_ptr + start

    unscale, enabled = load_scale(grad_scale, found_inf, ACC, SCALED)
    rate, bias_scale, shrink, decay = load_rates(
        rates, tensor, rate, bias_scale, shrink, decay, RULE, DEVICE_RATES
    )
    decay = as_scalar(decay, ACC)
    if enabled:
        x = load_gradient(g_ptr, offset, inside, unscale, ACC, MAXIMIZE, SCALED)
        w = x
        if RULE != CENTRALIZE or DECAY != NO_DECAY:
            w = load_tile(w_ptr, offset, inside, ACC)
        if RULE == CENTRALIZE:
            mean_of = x
            if DECAY != NO_DECAY:
                mean_of = x + decay * w
            high, low = vector_means(mean_of, inside, length.to(ACC), LENGTH)
            tl.store(m_ptr + offset, ((x - high) - low).to(T), mask=inside)
        else:
            m, v = load_states(m_ptr, v_ptr, offset, inside, x, ACC, RULE)
            if DECAY == PROJECTED or (DECAY == COUPLED and UPDATE):
                x = x + decay * w
            if CENTRALIZED and not UPDATE:
                high, low = vector_means(x, inside, length.to(ACC), LENGTH)
                x = (x - high) - low
            if DECAY == COUPLED and not UPDATE:
                x = x + decay * w
            d, m, v = compute_update(
                x, w, m, v, as_scalar(rate, ACC), as_scalar(bias_scale, ACC), as_scalar(shrink, ACC),
                as_scalar(momentum, ACC), as_scalar(grad_weight, ACC), as_scalar(beta2, ACC),
                as_scalar(one_minus_beta2, ACC), as_scalar(eps, ACC), RULE, DECAY,
            )  # fmt: skip
            if CENTRALIZED and UPDATE:
                d = tl.where(inside, d, 0.0)
                high, low = vector_means(d, inside, length.to(ACC), LENGTH)
                d = (d - high) - low
            store_step(w_ptr, m_ptr, v_ptr, offset, inside, w + d, m, v, T, RULE)


@triton.jit
def columns_kernel(
    pointers, shapes, tasks, rates, grad_scale, found_inf,
    rate: tl.float64, bias_scale: tl.float64, shrink: tl.float64, decay: tl.float64, momentum: tl.float64,
    grad_weight: tl.float64, beta2: tl.float64, one_minus_beta2: tl.float64, eps: tl.float64,
    T: tl.constexpr, ACC: tl.constexpr, RULE: tl.constexpr, DECAY: tl.constexpr, UPDATE: tl.constexpr,
    MAXIMIZE: tl.constexpr, SCALED: tl.constexpr, DEVICE_RATES: tl.constexpr, ALIGNED: tl.constexpr,
    INDEX: tl.constexpr, OUTER: tl.constexpr, VECTORS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """VECTORS neighbouring weight vectors in two passes of tiles (OUTER, VECTORS, INNER).

    A vector is `outer` runs of `inner` elements, `vectors * inner` apart. A long row is one vector whose runs
    of INNER elements follow each other; its last run may be shorter.
    """
    task = tasks + 3 * tl.program_id(0)
    tensor, batch, first = tl.load(task), tl.load(task + 1), tl.load(task + 2)
    sizes = shapes + tensor.to(tl.int64) * SIZES
    span, vectors, inner = tl.load(sizes), tl.load(sizes + 1).to(tl.int32), tl.load(sizes + 2).to(tl.int32)
    outer = tl.load(sizes + 3).to(tl.int32)
    w_ptr, g_ptr, m_ptr, v_ptr = load_pointers(pointers, tensor, T, ALIGNED)
    vector_elements: tl.constexpr = 128 // T.primitive_bitwidth
    start = batch.to(tl.int64) * span + first.to(tl.int64) * inner
    left = (span - first.to(tl.int64) * inner).to(INDEX)  # elements of this batch from `start` on
    stride = (vectors * inner).to(INDEX)
    remaining = vectors - first
    if ALIGNED:
        start, stride = tl.multiple_of(start, vector_elements), tl.multiple_of(stride, vector_elements)
        left = tl.multiple_of(left, vector_elements)
        if INNER == 1:
            remaining = tl.multiple_of(remaining, vector_elements)
        else:
            inner = tl.multiple_of(inner, vector_elements)
    w_ptr, g_ptr, m_ptr, v_ptr = w_ptr + start, g_ptr + start, m_ptr + start, v_ptr + start
    vector = tl.arange(0, VECTORS)[None, :, None]
    if INNER == 1:
        column = vector
        valid = vector < remaining
    else:
        i = tl.arange(0, INNER)[None, None, :]
        column = vector * inner + i
        valid = (vector < remaining) & (i < inner)
    row = tl.arange(0, OUTER)[:, None, None].to(INDEX)

    unscale, enabled = load_scale(grad_scale, found_inf, ACC, SCALED)
    rate, bias_scale, shrink, decay = load_rates(
        rates, tensor, rate, bias_scale, shrink, decay, RULE, DEVICE_RATES
    )
    rate, bias_scale, shrink = as_scalar(rate, ACC), as_scalar(bias_scale, ACC), as_scalar(shrink, ACC)
    momentum, grad_weight, eps = as_scalar(momentum, ACC), as_scalar(grad_weight, ACC), as_scalar(eps, ACC)
    beta2, one_minus_beta2, decay = (
        as_scalar(beta2, ACC),
        as_scalar(one_minus_beta2, ACC),
        as_scalar(decay, ACC),
    )
    if enabled:
        # The mean relative to `shift`, the mean of the first tile: of a constant vector both parts are exact.
        shift = tl.zeros([1, VECTORS, 1], dtype=ACC)
        if not UPDATE:
            offset = row * stride + column
            inside = valid & (offset < left)
            x = load_gradient(g_ptr, offset, inside, unscale, ACC, MAXIMIZE, False)
            if SCALED:
                x = x * unscale
            if DECAY == PROJECTED:
                x = x + decay * load_tile(w_ptr, offset, inside, ACC)
            high, low = vector_means(x, inside, (tl.minimum(outer, OUTER) * inner).to(ACC), OUTER * INNER)
            shift = high + low
        weight = 1.0 / (outer.to(ACC) * inner.to(ACC))
        if INNER > 1:
            weight = 1.0 / tl.where(vectors == 1, left.to(ACC), outer.to(ACC) * inner.to(ACC))
        total = tl.zeros([OUTER, VECTORS, INNER], dtype=ACC)
        for begin in range(0, outer, OUTER):
            offset = (begin + row) * stride + column
            inside = valid & (offset < left)
            x = load_gradient(g_ptr, offset, inside, unscale, ACC, MAXIMIZE, False)
            if SCALED:
                x = x * unscale
            if UPDATE:
                w = load_tile(w_ptr, offset, inside, ACC)
                m, v = load_states(m_ptr, v_ptr, offset, inside, x, ACC, RULE)
                if DECAY != NO_DECAY and DECAY != DECOUPLED:
                    x = x + decay * w
                x, m, v = compute_update(
                    x, w, m, v, rate, bias_scale, shrink, momentum, grad_weight, beta2, one_minus_beta2, eps,
                    RULE, DECAY,
                )  # fmt: skip
            elif DECAY == PROJECTED:
                x = x + decay * load_tile(w_ptr, offset, inside, ACC)
            total += tl.where(inside, (x - shift) * weight, 0.0)
        low = sum_vectors(total)

        for begin in range(0, outer, OUTER):
            offset = (begin + row) * stride + column
            inside = valid & (offset < left)
            x = load_gradient(g_ptr, offset, inside, unscale, ACC, MAXIMIZE, SCALED)
            if RULE == CENTRALIZE:
                tl.store(m_ptr + offset, ((x - shift) - low).to(T), mask=inside)
            else:
                w = load_tile(w_ptr, offset, inside, ACC)
                m, v = load_states(m_ptr, v_ptr, offset, inside, x, ACC, RULE)
                if DECAY == PROJECTED or (DECAY == COUPLED and UPDATE):
                    x = x + decay * w
                if not UPDATE:
                    x = (x - shift) - low
                if DECAY == COUPLED and not UPDATE:
                    x = x + decay * w
                d, m, v = compute_update(
                    x, w, m, v, rate, bias_scale, shrink, momentum, grad_weight, beta2, one_minus_beta2, eps,
                    RULE, DECAY,
                )  # fmt: skip
                if UPDATE:
                    d = d - low
                store_step(w_ptr, m_ptr, v_ptr, offset, inside, w + d, m, v, T, RULE)


@triton.jit
def rates_kernel(
    pointers, rates, lr_tensor, found_inf, count, lr: tl.float64, log2_beta1: tl.float64, log2_beta2: tl.float64,
    lr_decay: tl.float64, weight_decay: tl.float64,
    STEP_T: tl.constexpr, RULE: tl.constexpr, DEVICE_LR: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Per tensor: add 1 to the step counter; write the rate, 1/sqrt(1 - beta2^t) and lr * weight_decay as float64."""
    tensor = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tensor < count
    if DEVICE_LR:
        lr = tl.load(lr_tensor).to(tl.float64)
    rate = tl.full([BLOCK], 0.0, dtype=tl.float64) + lr
    bias_scale = tl.full([BLOCK], 1.0, dtype=tl.float64)
    if RULE >= ADAM:
        counter = tl.load(pointers + tensor * POINTERS + 4, mask=inside, other=0).to(tl.pointer_type(STEP_T))
        step = tl.load(counter, mask=inside, other=0.0) + 1
        if SCALED:  # a step that does not happen does not count
            step = tl.where(tl.load(found_inf) == 0.0, step, step - 1)
        tl.store(counter, step, mask=inside)
        t = step.to(tl.float64)
        if RULE == ADAM:
            rate = rate / (1.0 - tl.exp2(t * log2_beta1))
            bias_scale = 1.0 / tl.sqrt(1.0 - tl.exp2(t * log2_beta2))
        else:
            rate = rate / (1.0 + (t - 1.0) * lr_decay)
    tl.store(rates + tensor * 3, rate, mask=inside)
    tl.store(rates + tensor * 3 + 1, bias_scale, mask=inside)
    tl.store(rates + tensor * 3 + 2, rate * 0.0 + lr * weight_decay, mask=inside)
