"""The geometry of shards, with all ranks of a mesh played by one process: no communication, any mesh."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from gradcent import Layout, centralize
from gradcent.dtensor.geometry import _held, _sharding, share
from gradcent.dtensor.shard import shifted, sums_of


def play(tensor: torch.Tensor, layout: Layout, placements: tuple, mesh: tuple[int, ...]) -> torch.Tensor:
    """Centralize as the ranks of a mesh would, adding up sums as their reductions do."""
    shape = tuple(tensor.shape)
    ranks = list(itertools.product(*map(range, mesh)))
    locals_, shares, totals = {}, {}, {}
    for rank in ranks:
        local = tensor
        for dim in range(tensor.ndim):
            held = list(_held(shape[dim], _sharding(placements, mesh, dim), rank))
            local = local.index_select(dim, torch.tensor(held, dtype=torch.long))
        locals_[rank], shares[rank] = local, share(layout, shape, placements, mesh, rank)
        assert shares[rank].shape == tuple(local.shape)
        assert shares[rank].reduce == shares[ranks[0]].reduce, "ranks must agree on the collectives"
        if shares[rank].layout is None:
            key = tuple(index for axis, index in enumerate(rank) if axis not in shares[rank].reduce)
            totals[key] = totals.get(key, 0) + sums_of(local, shares[rank])
    result = torch.full_like(tensor, math.nan)
    for rank in ranks:
        held = shares[rank]
        key = tuple(index for axis, index in enumerate(rank) if axis not in held.reduce)
        if held.layout is not None:
            local = centralize(locals_[rank], held.layout) if locals_[rank].numel() else locals_[rank]
        else:
            local = shifted(locals_[rank], held, totals[key])
        where = [
            torch.tensor(list(_held(shape[dim], _sharding(placements, mesh, dim), rank)), dtype=torch.long)
            for dim in range(tensor.ndim)
        ]
        result[torch.meshgrid(*where, indexing="ij")] = local
    return result


LAYOUTS = st.one_of(
    st.tuples(st.integers(1, 7), st.integers(2, 6)).map(lambda s: (Layout.rows(s), s)),
    st.tuples(st.integers(2, 7), st.integers(1, 6)).map(lambda s: (Layout.columns(s), s)),
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)).map(lambda s: (Layout.rows(s), s)),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)).map(
        lambda s: (Layout.transposed((s[0] * s[1], s[2], s[3]), s[0]), (s[0] * s[1], s[2], s[3]))
    ),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 3)).map(
        lambda s: (Layout.stacked_rows(s), s)
    ),
    st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(1, 3)).map(
        lambda s: (Layout.stacked_columns(s), s)
    ),
)


@settings(max_examples=400, deadline=None)
@given(LAYOUTS, st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 2)), min_size=1, max_size=2))
def test_any_mesh_gives_what_one_process_gives(
    pair: tuple[Layout, tuple[int, ...]], axes: list[tuple[int, int]]
) -> None:
    layout, shape = pair
    placements = tuple(Replicate() if dim < 0 else Shard(dim % len(shape)) for _, dim in axes)
    mesh = tuple(size for size, _ in axes)
    tensor = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(play(tensor, layout, placements, mesh), centralize(tensor, layout))


@settings(max_examples=100, deadline=None)
@given(LAYOUTS, st.integers(1, 3), st.integers(2, 3), st.integers(0, 1))
def test_fsdp_over_tensor_parallel(
    pair: tuple[Layout, tuple[int, ...]], data: int, model: int, dim: int
) -> None:
    """FSDP2 cuts what tensor parallel has cut: _StridedShard, uneven sizes included."""
    layout, shape = pair
    dim %= len(shape)
    placements = (_StridedShard(dim, split_factor=model), Shard(dim))
    tensor = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(play(tensor, layout, placements, (data, model)), centralize(tensor, layout))


def test_strided_shards_are_where_torch_puts_them() -> None:
    """The docstring of _StridedShard: 8 rows, mesh 2×2, rank (0, 1) holds rows 4 and 5."""
    sharding = _sharding((_StridedShard(0, split_factor=2), Shard(0)), (2, 2), 0)
    rows = {rank: list(_held(8, sharding, rank)) for rank in itertools.product(range(2), range(2))}
    assert rows == {(0, 0): [0, 1], (0, 1): [4, 5], (1, 0): [2, 3], (1, 1): [6, 7]}


@pytest.mark.parametrize(
    ("layout", "shape", "dim", "cut"),
    [
        (Layout.rows((8, 6)), (8, 6), 0, False),
        (Layout.rows((8, 6)), (8, 6), 1, True),
        (Layout.columns((8, 6)), (8, 6), 0, True),
        (Layout.columns((8, 6)), (8, 6), 1, False),
        (Layout.transposed((8, 6, 3), 2), (8, 6, 3), 0, False),  # two ranks, a group each
        (Layout.transposed((6, 6, 3), 3), (6, 6, 3), 0, True),  # the border falls inside the second group
        (Layout.transposed((6, 6, 3), 3), (6, 6, 3), 1, False),
        (Layout.rows((1, 6)), (1, 6), 0, False),  # the second rank has nothing
    ],
)
def test_which_vectors_are_cut(layout: Layout, shape: tuple[int, ...], dim: int, cut: bool) -> None:
    held = share(layout, shape, (Shard(dim),), (2,), (0,))
    assert bool(held.reduce) is cut
    assert (held.layout is None) is cut


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("length", [3, 7, 1000, 4099])
def test_constant_vectors_come_out_exactly_zero_in_one_pass(dtype: torch.dtype, length: int) -> None:
    """Adam would turn a residue of 1e-7 into full steps; cut vectors have one reduction to get this right."""
    tensor = torch.randn(5, 1).to(dtype).expand(5, length).contiguous()
    result = play(tensor, Layout.rows(tensor.shape), (Shard(1),), (3,))
    assert torch.equal(result, torch.zeros_like(tensor))


def test_cut_vectors_are_centred_as_well_as_whole_ones() -> None:
    """A large mean leaves a small one when it is rounded; that is removed too."""
    tensor = torch.randn(4, 999) + 1e4
    layout = Layout.rows(tensor.shape)
    played = play(tensor, layout, (Shard(1),), (2,)).double().mean(1).abs().max()
    assert played <= 2 * centralize(tensor, layout).double().mean(1).abs().max() + 1e-7


def test_unknown_placements_are_refused() -> None:
    class Ragged:
        pass

    with pytest.raises(TypeError, match="redistribute"):
        share(Layout.rows((4, 4)), (4, 4), (Ragged(),), (2,), (0,))
