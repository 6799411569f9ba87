"""The independent truth for every kernel: the paper's equations and torch's update rules, in float64."""

import torch

from gradcent.layout import Layout


def project(x, layout):
    """Eq. 1: subtract from each weight vector its mean."""
    if layout is None:
        return x
    shape, dims = layout.split(x.shape)
    vectors = x.reshape(shape)
    return (vectors - vectors.mean(dims, keepdim=True)).reshape(x.shape)


def sgd(
    w,
    g,
    m,
    layout,
    *,
    lr,
    momentum,
    dampening,
    nesterov,
    weight_decay,
    decoupled,
    maximize,
    at,
    projected=True,
):
    """Return the weight and the momentum after one step."""
    before, x = w, -g if maximize else g
    if decoupled:
        w = w * (1 - lr * weight_decay)
    elif projected or at == "update":
        x = x + weight_decay * w
    if at == "gradient":
        x = project(x, layout)
    if not decoupled and not projected and at == "gradient":
        x = x + weight_decay * w
    if momentum:
        m = x if m is None else momentum * m + (1 - dampening) * x
        x = x + momentum * m if nesterov else m
    return _moved(before, w - lr * x, layout, at), m


def adam(w, g, m, v, step, layout, *, lr, beta1, beta2, eps, weight_decay, decoupled, maximize, at):
    """Return the weight and both moments after step number `step`."""
    before, x = w, -g if maximize else g
    if decoupled:
        w = w * (1 - lr * weight_decay)
    else:
        x = x + weight_decay * w
    if at == "gradient":
        x = project(x, layout)
    m = beta1 * m + (1 - beta1) * x
    v = beta2 * v + (1 - beta2) * x * x
    after = w - lr * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps)
    return _moved(before, after, layout, at), m, v


def adagrad(w, g, s, step, layout, *, lr, lr_decay, eps, weight_decay, decoupled, maximize, at):
    """Return the weight and the sum of squares after step number `step`."""
    before, x = w, -g if maximize else g
    if decoupled:
        w = w * (1 - lr * weight_decay)
    else:
        x = x + weight_decay * w
    if at == "gradient":
        x = project(x, layout)
    s = s + x * x
    return _moved(before, w - lr / (1 + (step - 1) * lr_decay) * x / (s.sqrt() + eps), layout, at), s


def _moved(before, after, layout, at):
    return before + project(after - before, layout) if at == "update" else after


# (shape, layout): every kind of layer, and sizes around the kernels' inner borders
CASES = [
    ((), None),
    ((0,), None),
    ((0, 5), Layout.rows((0, 5))),
    ((5,), None),
    ((1, 1), Layout.rows((1, 1))),
    ((3, 7), Layout.rows((3, 7))),
    ((64, 3, 7, 7), Layout.rows((64, 3, 7, 7))),
    ((40, 9), Layout.rows((40, 9))),  # a depthwise 3×3
    ((33, 31), Layout.rows((33, 31))),
    ((33, 32), Layout.rows((33, 32))),
    ((17, 63), Layout.rows((17, 63))),
    ((17, 64), Layout.rows((17, 64))),
    ((5, 513), Layout.rows((5, 513))),
    ((23, 300), Layout.rows((23, 300))),  # centred at four places at a time, and three rows left
    ((37, 53), Layout.columns((37, 53))),  # transformers' Conv1D
    ((700, 45), Layout.columns((700, 45))),
    ((2000, 3), Layout.columns((2000, 3))),
    ((6, 4, 3, 3), Layout.transposed((6, 4, 3, 3), groups=2)),
    ((530, 130), Layout.columns((530, 130))),  # read in the order of memory
    ((30, 70, 7, 5), Layout.transposed((30, 70, 7, 5), groups=2)),
    ((8, 5, 9, 9), Layout.transposed((8, 5, 9, 9), groups=4)),  # runs longer than a short one
    ((3, 8, 20), Layout.stacked_columns((3, 8, 20))),
    ((3, 20, 8), Layout.stacked_rows((3, 20, 8))),
    ((4, 6, 5), Layout.rows((4, 6, 5))),
    ((1000,), None),
    ((123, 457), None),
]
LONG = [
    ((2, 70_001), Layout.rows((2, 70_001))),  # more than one piece
    ((2, 300_007), Layout.rows((2, 300_007))),  # split among threads
    ((2, 2, 131_075), Layout.transposed((2, 2, 131_075), groups=1)),  # split, in several runs
    ((4099, 70), Layout.columns((4099, 70))),  # columns in more than one chunk of rows
    ((1203, 451), Layout.columns((1203, 451))),
    ((2, 2003, 140), Layout.stacked_columns((2, 2003, 140))),
    ((1024, 128), Layout.columns((1024, 128))),  # whole stretches, nothing left over
    ((3, 40_000), Layout.columns((3, 40_000))),  # too few rows for stages
]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# a few units in the last place of the type, for numbers of order one
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def tensors(dtype, seed=0, cases=CASES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape, _ in cases]


def wide(tensor):
    """A copy in float64, never the tensor itself."""
    return tensor.to(torch.float64, copy=True)


def assert_close(actual, expected, dtype, what=""):
    error = (wide(actual) - expected).abs()
    limit = TOLERANCE[dtype] * (1 + expected.abs())
    assert bool((error <= limit).all()), (
        f"{what}: off by {error.max().item():.3g} in {tuple(actual.shape)} {dtype}"
    )
