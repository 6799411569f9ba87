"""What identifies a run: its arm, its settings and its seed, and the hash that names its folder.

A run can be repeated from its configuration alone: the configuration holds everything that can change a number
and nothing that cannot (paths, the number of processes, the name of the machine).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1  # increased when the meaning of a stored field changes, so that old runs are not reused


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: `attach` holds the keyword arguments of `gradcent.attach`; None is off.

    `settings` replaces some of the cell's for this arm: values that were tuned for it, or an error of the released
    scripts that a recipe repeats. The arms of a pair are otherwise equal.

    `control` names what is done in place of GC, to tell what its effect comes from (`run/controls.py`).
    """

    name: str
    attach: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    control: str | None = None

    @property
    def on(self) -> bool:
        """Whether gradients are centralized in this arm."""
        return self.attach is not None


OFF = Arm("off", None)
ON = Arm("on", {"layers": "all"})
CONV = Arm("conv", {"layers": "conv"})
CONV_AND_FC = Arm("conv + FC", {"layers": "all"})


@dataclass(frozen=True)
class Numerics:
    """Numerical options that change the results."""

    precision: str = "no"  # as accelerate names it: no | bf16 | fp16
    compile: bool = False
    channels_last: bool = False


@dataclass(frozen=True)
class RecipeInfo:
    """The recipe, scale and switches that a run was started with.

    It is stored in its own file for the report. It is not part of the run's identity: two choices of a
    switch that lead to the same settings are the same run.
    """

    recipe: str
    scale: str  # the scale's description
    is_paper: bool
    switches: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "recipe": self.recipe,
            "scale": self.scale,
            "is_paper": self.is_paper,
            "switches": dict(self.switches),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RecipeInfo:
        """Read what `as_dict` returned."""
        return cls(document["recipe"], document["scale"], document["is_paper"], document["switches"])


@dataclass(frozen=True)
class RunConfig:
    """The full configuration of one run; `recipe` is None for a user's own experiment."""

    study: str
    cell: str
    arm: Arm
    seed: int
    scale: str
    settings: Mapping[str, Any]
    numerics: Numerics = field(default_factory=Numerics)
    recipe: RecipeInfo | None = field(default=None, compare=False)

    @property
    def epochs(self) -> int:
        """The number of epochs (0 for a measurement)."""
        return int(self.settings.get("epochs", 0))

    @property
    def label(self) -> str:
        """A short name for messages: `table1 R18 conv seed 3`."""
        return f"{self.study} {self.cell} {self.arm.name} seed {self.seed}"

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        numerics = self.numerics
        document = {
            "format": FORMAT,
            "study": self.study,
            "cell": self.cell,
            "arm": {
                "name": self.arm.name,
                "attach": self.arm.attach,
                **({"settings": self.arm.settings} if self.arm.settings else {}),
                **({"control": self.arm.control} if self.arm.control else {}),
            },
            "seed": self.seed,
            "scale": self.scale,
            "settings": self.settings,
            "numerics": {
                "precision": numerics.precision,
                "compile": numerics.compile,
                "channels_last": numerics.channels_last,
            },
        }
        plain: dict[str, Any] = json.loads(canonical(document))
        return plain

    @property
    def run_id(self) -> str:
        """The name of the run's folder: the hash of everything above."""
        return digest(self.as_dict())


def canonical(document: Any) -> str:
    """Return JSON with sorted keys: equal documents give equal text. Other types are written by `repr`."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=_plain)


def digest(document: Any) -> str:
    """Return 16 hexadecimal digits that name `document`."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)
