"""Figures of the concepts page: which elements form a weight vector, and what centralizing does to a gradient.

The first figure asks gradcent's own plan which element belongs to which vector; the second computes a real gradient.
Both are SVG in the text of the page, in the colours of the site.
"""

from __future__ import annotations

import torch
from torch import nn

import gradcent

HUES = ("--v1", "--v2", "--v3", "--v4")
CELL, GAP = 14, 5


def layouts_figure() -> str:
    """Draw Linear, Conv2d and ConvTranspose2d with the elements of each weight vector in one colour."""
    modules = (
        ("nn.Linear(6, 4)", nn.Linear(6, 4, bias=False), "(out, in) = (4, 6)"),
        ("nn.Conv2d(3, 4, 2)", nn.Conv2d(3, 4, 2, bias=False), "(out, in, 2, 2) = (4, 3, 2, 2)"),
        (
            "nn.ConvTranspose2d(3, 4, 2)",
            nn.ConvTranspose2d(3, 4, 2, bias=False),
            "(in, out, 2, 2) = (3, 4, 2, 2)",
        ),
    )
    figures = []
    for title, module, shape in modules:
        grid, width, height = _grid(module)
        figures.append(
            f'<figure class="vectors"><figcaption><code>{title}</code><br>weight {shape}</figcaption>'
            f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'aria-label="{title}: elements of one weight vector have one colour">{grid}</svg></figure>'
        )
    return f'<div class="vectors-row">{"".join(figures)}</div>\n'


def vector_index(module: nn.Module) -> torch.Tensor:
    """Return, for every element of the module's weight, the number of the weight vector it belongs to."""
    weight = module.weight
    layout = gradcent.explain(module, min_length=2).layout(weight)
    assert layout is not None
    assert isinstance(weight, nn.Parameter)
    vectors = torch.arange(layout.batch * layout.vectors).reshape(layout.batch, 1, layout.vectors, 1)
    return vectors.expand(layout.shape).reshape(weight.shape)


def _grid(module: nn.Module) -> tuple[str, int, int]:
    """Draw dim 0 downwards, dim 1 to the right, and kernels as blocks."""
    index = vector_index(module)
    rows, columns = index.shape[:2]
    high, wide = index.shape[2:] if index.ndim == 4 else (1, 1)
    blocks = index.reshape(rows, columns, high, wide)
    step_x, step_y = wide * CELL + (GAP if wide > 1 else 0), high * CELL + GAP
    cells = []
    for (row, column, y, x), vector in zip(_positions(blocks.shape), blocks.flatten().tolist(), strict=True):
        left, top = column * step_x + x * CELL, row * step_y + y * CELL
        cells.append(
            f'<rect x="{left}" y="{top}" width="{CELL - 1}" height="{CELL - 1}" fill="var({HUES[vector % 4]})"/>'
        )
    return "".join(cells), columns * step_x, rows * step_y


def _positions(shape: torch.Size) -> list[tuple[int, ...]]:
    return [tuple(position) for position in torch.cartesian_prod(*map(torch.arange, shape)).tolist()]


def projection_figure() -> str:
    """Draw a real gradient of a Linear layer, the mean of each of its rows, and the centralized gradient."""
    torch.manual_seed(1)
    layer = nn.Linear(8, 4)
    inputs = torch.rand(32, 8)  # positive inputs, as after a ReLU: their mean is not 0
    nn.functional.cross_entropy(layer(inputs), torch.randint(4, (32,))).backward()
    gradient = layer.weight.grad
    assert gradient is not None
    layout = gradcent.explain(layer).layout(layer.weight)
    assert layout is not None
    centralized = gradcent.centralize(gradient, layout)
    means = gradient - centralized
    largest = float(gradient.abs().max())
    parts = [
        ("gradient g", gradient),
        ("mean of each row", means[:, :1]),
        ("centralized gradient Φ(g)", centralized),
    ]
    figures = []
    for number, (title, values) in enumerate(parts):
        sign = ("", "−", "=")[number]
        operator = f'<span class="vectors-sign">{sign}</span>' if sign else ""
        sums = values.sum(1) if values.shape[1] > 1 else None
        figures.append(
            f'{operator}<figure class="vectors"><figcaption>{title}</figcaption>{_heat(values, sums, largest)}</figure>'
        )
    return f'<div class="vectors-row">{"".join(figures)}</div>\n'


def _heat(values: torch.Tensor, sums: torch.Tensor | None, largest: float) -> str:
    size = 20
    rows, columns = values.shape
    cells = []
    for (row, column), value in zip(_positions(values.shape), values.flatten().tolist(), strict=True):
        colour = "--on" if value > 0 else "--off"
        opacity = min(1.0, abs(value) / largest)
        cells.append(
            f'<rect x="{column * size}" y="{row * size}" width="{size - 1}" height="{size - 1}" '
            f'fill="var({colour})" fill-opacity="{opacity:.2f}" stroke="var(--line)" stroke-width="0.5"/>'
        )
    width = columns * size
    if sums is not None:
        width += 78
        for row, total in enumerate(sums.tolist()):
            text = f"{total:+.3f}".replace("-", "−") if abs(total) > 5e-4 else "0"
            cells.append(f'<text x="{columns * size + 8}" y="{row * size + 14}">sum {text}</text>')
    size_words = f'viewBox="0 0 {width} {rows * size}" width="{width}"'
    return f'<svg {size_words} role="img" aria-label="values as colours">{"".join(cells)}</svg>'
