"""The figures that the site computes: elements of one weight vector, and the graph of imports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "_ext"))

import import_graph
import weight_vectors


@pytest.mark.parametrize(
    ("module", "output_dim"),
    [(nn.Linear(6, 4), 0), (nn.Conv2d(3, 4, 2), 0), (nn.ConvTranspose2d(3, 4, 2), 1)],
    ids=lambda value: type(value).__name__,
)
def test_elements_of_one_colour_produce_one_output(module: nn.Module, output_dim: int) -> None:
    """The weights of output channel k, found by what its output depends on, are the elements of vector k."""
    index = weight_vectors.vector_index(module)
    shape = (1, 6) if isinstance(module, nn.Linear) else (1, 3, 4, 4)
    for channel in range(4):
        (gradient,) = torch.autograd.grad(module(torch.rand(shape) + 1)[:, channel].sum(), module.weight)
        assert torch.equal(gradient != 0, index == channel)
    assert index.shape[output_dim] == 4


def test_the_centralized_rows_of_the_figure_sum_to_zero() -> None:
    text = weight_vectors.projection_figure()
    assert text.count("sum 0<") == 4
    assert text.count("sum +") + text.count("sum −") == 4


def test_imports_of_the_library() -> None:
    graph = import_graph.edges("gradcent")
    assert "plan" in graph["attach"] | graph["attachment"]
    assert not graph["layout"]
    level = import_graph.levels(graph)
    assert all(level[part] > level[name] for part, below in graph.items() for name in below)


def test_only_direct_imports_are_drawn() -> None:
    graph = {"top": {"middle", "bottom"}, "middle": {"bottom"}, "bottom": set()}
    assert import_graph.direct(graph) == {"top": {"middle"}, "middle": {"bottom"}, "bottom": set()}
    with pytest.raises(ValueError, match="cycle among a, b"):
        import_graph.levels({"a": {"b"}, "b": {"a"}})
