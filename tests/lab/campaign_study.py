"""The toy experiment made as small as it can be, for the campaigns: every kind of file, little computation."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import toy
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab import recipes
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.recipe import Recipe


def observe(model: nn.Module) -> dict[str, float]:
    """Return the norm of the first gradient."""
    return {"norm": float(model[0].weight.grad.norm())}


def experiment() -> Experiment:
    """Two epochs of two steps: the fewest that have a checkpoint within and between epochs."""
    evaluation = toy.Noisy(4, 2)
    return replace(
        toy.experiment(),
        train_data=toy.Noisy(8, 1),
        eval_data=TensorDataset(evaluation.x, evaluation.y),
        observe=observe,
        batch_size=4,
        epochs=2,
    )


def observe_slowly(model: nn.Module) -> dict[str, float]:
    """Wait, so that a kill from outside falls into a run."""
    time.sleep(0.02)
    return observe(model)


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment of the recipe's only cell; no dropout, whose draws depend on the launch."""
    slow = {"observe": observe_slowly} if settings["name"] == "slow" else {}
    return replace(experiment(), name="campaign", model=toy.plain_network, epochs=settings["epochs"], **slow)


def cells(scale: Scale, switches: Mapping[str, str]) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell("tiny", {"name": scale.name, "epochs": scale.sizes["epochs"]}),)


RECIPE = Recipe(
    "campaign",
    "The smallest experiment",
    None,
    (
        Scale("smoke", "two epochs of two steps", seeds=(0, 1, 2), sizes={"epochs": 2}),
        Scale("slow", "twelve epochs of two slow steps", seeds=(0, 1), sizes={"epochs": 12}),
    ),
    cells,
    (OFF, ON),
    build,
)


def register_recipe() -> None:
    """Let `gradcent run campaign` of this process find the recipe."""
    sys.modules["gradcent_lab.recipes.campaign_study"] = sys.modules[__name__]
    recipes.RECIPES["campaign"] = ("campaign_study", "RECIPE")


def main() -> int:
    """`python campaign_study.py run campaign …`: the `gradcent` command with the recipe."""
    from gradcent_lab.cli import main as command

    register_recipe()
    return command()


if __name__ == "__main__":
    sys.exit(main())
