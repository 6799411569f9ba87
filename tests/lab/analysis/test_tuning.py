"""Tuning: reading the grid, choosing on held-out results, the range of good values."""

import math

import pytest

from gradcent_lab.analysis.tuning import GridPoint, TunedArm, grid_points, parse_grid
from gradcent_lab.errors import UserError


def arm(means, higher_is_better=True, diverged=()):
    points = tuple(
        GridPoint((("lr", lr),), (mean - 0.1, mean + 0.1), int(lr in diverged)) for lr, mean in means.items()
    )
    return TunedArm("on", points, higher_is_better)


def test_every_combination_is_tried():
    grid = parse_grid(["lr=0.1,0.3", "weight_decay=0,1e-4"])
    points = grid_points(grid)
    assert len(points) == 4
    assert (("lr", 0.3), ("weight_decay", 1e-4)) in points


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("lr", "write name=value"),
        ("=1,2", "write name=value"),
        ("lr=", "the grid is empty"),
        ("lr=,", "the grid is empty"),
        ("lr=a,b", "must be numbers"),
        ("lr=nan", "must be finite"),
        ("lr=0.1,0.1", "listed twice"),
    ],
)
def test_bad_grids_get_one_line(option, message):
    with pytest.raises(UserError, match=message):
        parse_grid([option])
    with pytest.raises(UserError, match="given twice"):
        parse_grid(["lr=0.1", "lr=0.3"])


def test_the_best_held_out_mean_is_chosen_and_diverged_points_never():
    tuned = arm({0.03: 60.0, 0.1: 70.0, 0.3: 80.0}, diverged=(0.3,))
    assert dict(tuned.best.values) == {"lr": 0.1}
    assert math.isnan(tuned.points[2].mean)
    assert dict(arm({0.1: 2.0, 0.3: 1.0}, higher_is_better=False).best.values) == {"lr": 0.3}
    with pytest.raises(UserError, match="every run of arm on diverged"):
        _ = arm({0.1: 1.0}, diverged=(0.1,)).best


def test_the_good_range_and_the_edge_of_the_grid():
    # the pilot of the issue: ResNet-8 on 10,000 CIFAR-100 images
    without = arm({0.01: 10.3, 0.03: 13.2, 0.1: 13.7, 0.3: 14.7, 0.6: 14.3, 1.2: 13.4})
    with_ = arm({0.01: 9.6, 0.03: 13.6, 0.1: 16.9, 0.3: 19.1, 0.6: 19.5, 1.2: 20.2})
    assert without.good_range("lr", 1.0) == (0.1, 0.6)
    assert with_.good_range("lr", 1.0) == (0.6, 1.2)
    assert without.at_edge() == ()
    assert with_.at_edge() == ("lr",)  # a larger rate may be better still
