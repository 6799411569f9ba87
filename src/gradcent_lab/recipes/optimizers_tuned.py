"""Which optimizers does GC help, and where should it act? Table 2 in small, with tuned arms, Lion and Muon.

SGDM is the cell BN of `norms`. Its update is linear in g + λw, so centralizing the update is the same as
centralizing the gradient.
"""

from __future__ import annotations

from dataclasses import replace

from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.experiment.study import Cell, Scale, Tuning
from gradcent_lab.recipes import small_resnet
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

UPDATE = Arm("update", {"layers": "all", "at": "update"})
ARMS = (OFF, small_resnet.ALL, UPDATE)
# optimizer → weight decay and the grid of learning rates, a factor of 3 around the usual value
OPTIMIZERS: dict[str, tuple[float, tuple[float, ...]]] = {
    "Adam": (5e-4, (1e-3, 3e-3, 1e-2)),
    "Adagrad": (5e-4, (1e-2, 3e-2, 1e-1)),
    "SGDW": (1e-3, (0.1, 0.3, 1.0)),
    "AdamW": (1e-3, (1e-3, 3e-3, 1e-2)),
    "Lion": (1e-2, (1e-4, 3e-4, 1e-3)),
    "Muon": (1e-3, (1e-3, 3e-3, 1e-2)),  # timm scales the update to AdamW's
}
# the next rate where the tuning chose the highest one of the grid
BEYOND = {"AdamW": 3e-2}
SCALES = (
    Scale(
        "mini",
        "ResNet-8 of width 16 on 10,000 training and 5,000 test images of CIFAR-100, 4 epochs of 78 steps; learning "
        "rates tuned for each optimizer and arm",
        seeds=tuple(range(6)),
        sizes={"train": 10_000, "eval": 5_000, "width": 16, "epochs": 4, "batch_size": 128},
        tuning=Tuning({}),
    ),
    replace(small_resnet.smoke(), tuning=Tuning({}, seeds=(10_000,))),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per optimizer."""
    return tuple(_cell(name, scale) for name in OPTIMIZERS)


def _cell(name: str, scale: Scale) -> Cell:
    decay, rates = OPTIMIZERS[name]
    settings = small_resnet.settings("optimizers-tuned", {"name": "R8"}, scale.sizes, rates[1])
    settings["optimizer"] = {"name": name, "lr": rates[1], "weight_decay": decay}
    arms = None
    if name == "SGDW":  # the lab's own class, so `attach` must be told its kind of decay
        arms = tuple(
            replace(arm, attach={**arm.attach, "decay": "decoupled"}) if arm.attach else arm for arm in ARMS
        )
    if scale.name != "mini":
        return Cell(name, settings, arms, {"lr": rates[:1]})
    beyond = {"lr": (BEYOND[name],)} if name in BEYOND else None
    return Cell(name, settings, arms, {"lr": rates}, beyond)


RECIPE = Recipe(
    "optimizers-tuned",
    "Adaptive and decoupled optimizers, Lion and Muon: GC at the gradient or at the update, tuned",
    None,
    SCALES,
    cells,
    ARMS,
    Lazy("recipes.builders.classification:build"),
    notes=(
        small_resnet.NOTES[0],
        "SGDM is the cell BN of norms: its centralized update is the update of its centralized gradient",
        "Lion and Muon are timm's; Muon updates the hidden convolutions, its AdamW all other parameters",
    ),
    numerics=small_resnet.NUMERICS,
)
