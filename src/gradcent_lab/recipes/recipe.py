"""What a recipe is: the scales and switches of one table or figure, and the function that makes its study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.study import Scale, Study


@dataclass(frozen=True)
class Switch:
    """A point on which the paper and the released code disagree; the first choice is the default."""

    choices: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Recipe:
    """One table or figure. `make(scale name, switches)` returns the frozen study."""

    name: str
    title: str
    paper: str  # where it stands there: "Table 1"
    scales: tuple[Scale, ...]
    make: Callable[[str, Mapping[str, str]], Study]
    needs: tuple[str, ...] = ()  # data sets
    switches: Mapping[str, Switch] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The title with its place in the paper, where it has one."""
        if self.paper == "none":
            return f"{self.title} (not in the paper)"
        return f"{self.paper[0].upper()}{self.paper[1:]}: {self.title}"

    def scale(self, name: str) -> Scale:
        """Return one of the recipe's scales by name."""
        for scale in self.scales:
            if scale.name == name:
                return scale
        known = ", ".join(scale.name for scale in self.scales)
        raise UserError(f"recipe {self.name} has no scale {name!r}: choose one of {known}")

    def study(self, scale: str, switches: Mapping[str, str] | None = None) -> Study:
        """Return the study at a scale; what is not switched stays at its default."""
        self.scale(scale)
        chosen = {name: switch.choices[0] for name, switch in self.switches.items()}
        for name, value in (switches or {}).items():
            if name not in self.switches:
                known = ", ".join(self.switches) or "none"
                raise UserError(f"recipe {self.name} has no switch {name!r}; it has {known}")
            if value not in self.switches[name].choices:
                choices = " or ".join(self.switches[name].choices)
                raise UserError(f"switch {name} of {self.name} takes {choices}, not {value!r}")
            chosen[name] = value
        return self.make(scale, chosen)

    def said(self, chosen: Mapping[str, str]) -> tuple[str, ...]:
        """Return the notes of a study: which side of each switch was taken, then the fixed notes."""
        sides = tuple(f"{name}={value}: {self.switches[name].words}" for name, value in chosen.items())
        return sides + self.notes
