"""The Triton kernel: one launch for a whole list, found through a table of pointers.

A program takes one task: a tile of neighbouring weight vectors of one tensor, or a stretch of a
tensor that the plan leaves alone. It goes over its vectors twice, for the mean and for the step; the
second time they come from cache. Triton is imported here, so this module is only imported on demand.
"""
# Triton's kernels are Python to read but not to check: their arguments have no types of ours.
# mypy: ignore-errors

import triton
import triton.language as tl

# columns of the table of tensors
W, G, M, V, BATCH, OUTER, VECTORS, INNER, NUMEL, CENTRED, WIDE, FIRST = range(12)
COLUMNS = 12
# operations
CENTRALIZE, PLAIN, MOMENTUM, ADAM, ADAGRAD = range(5)
# tiles: (vectors, elements of each) for vectors in long runs, and for vectors that lie side by side
ROW_TILE = (1, 1024)
COLUMN_TILE = (32, 32)


@triton.jit
def _change(
    x, w, m, v, rate, unbias, shrink, first,
    momentum, keep, of_x, of_m, blend, beta2, rest, eps,
    OP: tl.constexpr,
):  # fmt: skip
    """The optimizer's rule: the change of the weight, and its memory afterwards."""
    if OP == 1:
        d = -rate * x
    elif OP == 2:
        # a new buffer becomes x, whatever the dampening is
        m = tl.where(first != 0, x, momentum * m + keep * x)
        d = -rate * (of_x * x + of_m * m)
    elif OP == 3:
        m = m + blend * (x - m)
        v = beta2 * v + rest * x * x
        d = -rate * m / (tl.sqrt(v) * unbias + eps)
    else:
        m = m + x * x
        d = -rate * x / (tl.sqrt(m) + eps)
    return d - shrink * w, m, v


@triton.jit
def _tile(
    row, vector, rates, scale,
    sign, decay, momentum, keep, of_x, of_m, blend, beta2, rest, eps,
    T: tl.constexpr, ACC: tl.constexpr, OP: tl.constexpr, COUPLED: tl.constexpr, PROJECTED: tl.constexpr,
    UPDATE: tl.constexpr, SCALED: tl.constexpr, BV: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    w_at = tl.load(row + 0).to(tl.pointer_type(T))
    g_at = tl.load(row + 1).to(tl.pointer_type(T))
    m_at = tl.load(row + 2).to(tl.pointer_type(T))
    v_at = tl.load(row + 3).to(tl.pointer_type(T))
    batch, outer, vectors, inner = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6), tl.load(row + 7)
    numel, centred, first = tl.load(row + 8), tl.load(row + 9), tl.load(row + 11)
    rate, unbias, shrink = tl.load(rates).to(ACC), tl.load(rates + 1).to(ACC), tl.load(rates + 2).to(ACC)
    length = outer * inner
    which = vector + tl.arange(0, BV)[:, None].to(tl.int64)
    base = ((which // vectors) * outer * vectors + which % vectors) * inner
    own = which < batch * vectors
    zero = tl.zeros([BV, BL], dtype=ACC)

    high = tl.zeros([BV, 1], dtype=ACC)
    if centred != 0:
        # Relative to the first element: a constant vector then leaves exactly 0.
        shift = tl.zeros([BV, 1], dtype=ACC)
        if not UPDATE:
            shift = sign * (tl.load(g_at + base, mask=own, other=0.0).to(ACC) / scale)
            if PROJECTED:
                shift = shift + decay * tl.load(w_at + base, mask=own, other=0.0).to(ACC)
        total = zero
        for start in range(0, length, BL):
            j = start + tl.arange(0, BL)[None, :].to(tl.int64)
            at = base + (j // inner) * vectors * inner + j % inner
            here = own & (j < length)
            x = sign * (tl.load(g_at + at, mask=here, other=0.0).to(ACC) / scale)
            if UPDATE:
                w = tl.load(w_at + at, mask=here, other=0.0).to(ACC)
                m, v = zero, zero
                if OP >= 2:
                    m = tl.load(m_at + at, mask=here, other=0.0).to(ACC)
                if OP == 3:
                    v = tl.load(v_at + at, mask=here, other=0.0).to(ACC)
                if COUPLED:
                    x = x + decay * w
                x, m, v = _change(x, w, m, v, rate, unbias, shrink, first,
                                  momentum, keep, of_x, of_m, blend, beta2, rest, eps, OP)  # fmt: skip
            elif PROJECTED:
                x = x + decay * tl.load(w_at + at, mask=here, other=0.0).to(ACC)
            total = total + tl.where(here, x - shift, 0.0)
        high = shift + tl.sum(total, axis=1)[:, None] / length.to(ACC)

    for start in range(0, length, BL):
        j = start + tl.arange(0, BL)[None, :].to(tl.int64)
        at = base + (j // inner) * vectors * inner + j % inner
        here = own & (j < length) & (at < numel)
        g = tl.load(g_at + at, mask=here, other=0.0).to(ACC) / scale
        if OP == 0:
            tl.store(m_at + at, (g - high).to(T), mask=here)
        else:
            x, w = sign * g, tl.load(w_at + at, mask=here, other=0.0).to(ACC)
            if COUPLED:
                x = x + decay * w
            if not UPDATE:
                x = x - high
            m, v = zero, zero
            if OP >= 2:
                m = tl.load(m_at + at, mask=here, other=0.0).to(ACC)
            if OP == 3:
                v = tl.load(v_at + at, mask=here, other=0.0).to(ACC)
            d, m, v = _change(x, w, m, v, rate, unbias, shrink, first,
                              momentum, keep, of_x, of_m, blend, beta2, rest, eps, OP)  # fmt: skip
            if UPDATE:
                d = d - high
            tl.store(w_at + at, (w + d).to(T), mask=here)
            if OP >= 2:
                tl.store(m_at + at, m.to(T), mask=here)
            if OP == 3:
                tl.store(v_at + at, v.to(T), mask=here)
            if SCALED:  # as torch's fused kernels, which leave the gradient unscaled
                tl.store(g_at + at, g.to(T), mask=here)


@triton.jit
def step_kernel(
    table, rates, tasks, grad_scale, found_inf,
    sign, decay, momentum, keep, of_x, of_m, blend, beta2, rest, eps,
    T: tl.constexpr, ACC: tl.constexpr, OP: tl.constexpr, COUPLED: tl.constexpr, PROJECTED: tl.constexpr,
    UPDATE: tl.constexpr, SCALED: tl.constexpr,
    ROW_V: tl.constexpr, ROW_L: tl.constexpr, COLUMN_V: tl.constexpr, COLUMN_L: tl.constexpr,
):  # fmt: skip
    """Centralize, or take a centralized step of SGD, Adam or Adagrad; see the module's docstring."""
    task = tasks + 2 * tl.program_id(0)
    tensor, vector = tl.load(task), tl.load(task + 1)
    row, rates = table + tensor * 12, rates + tensor * 3
    scale = tl.full([], 1.0, dtype=ACC)
    go = tl.full([], 1, dtype=tl.int32)
    if SCALED:
        scale = tl.load(grad_scale).to(ACC)
    if SCALED:
        go = (tl.load(found_inf) == 0.0).to(tl.int32)
    if go != 0:
        if tl.load(row + 10) != 0:
            _tile(row, vector, rates, scale, sign, decay, momentum, keep, of_x, of_m, blend, beta2, rest, eps,
                  T, ACC, OP, COUPLED, PROJECTED, UPDATE, SCALED, COLUMN_V, COLUMN_L)  # fmt: skip
        else:
            _tile(row, vector, rates, scale, sign, decay, momentum, keep, of_x, of_m, blend, beta2, rest, eps,
                  T, ACC, OP, COUPLED, PROJECTED, UPDATE, SCALED, ROW_V, ROW_L)  # fmt: skip
