"""One table of optimizers that every contract test runs over: torch's, ours, and other people's.

A case says how to make the plain optimizer, how its decay works (as its authors document it, not as gradcent
believes), and what it can do; `model_for` makes the small model it trains, `run` trains.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradcent

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
COUPLED, DECOUPLED, NONE = "coupled", "decoupled", "none"


@dataclass(frozen=True)
class Case:
    """An optimizer under test."""

    name: str  # also the id of the test
    path: str  # "package.module:Class"
    options: dict[str, Any] = field(default_factory=dict)
    decay: str = NONE  # how weight_decay is applied when it is given
    forms: tuple[str, ...] = ()  # torch's execution forms beyond the plain loop
    maximize: bool = False
    closure: bool = False
    matrices_only: bool = False
    decay_known: bool = True  # False: gradcent must ask
    float64: bool = True
    drop_in: bool = False

    def make(self, params: Iterable[Any], **more: Any) -> torch.optim.Optimizer:
        """Make the plain optimizer."""
        optimizer = self.type(params, **{**self.options, **more})
        if hasattr(optimizer, "train"):
            optimizer.train()  # schedule-free optimizers have a mode
        return optimizer

    def attach(self, optimizer: Any, model: Any, **more: Any) -> Any:
        """Attach, saying how decay works where gradcent cannot know."""
        if not self.decay_known and "weight_decay" in optimizer.defaults:
            more.setdefault("decay", self.decay)
        return gradcent.attach(optimizer, model, **more)

    @property
    def type(self) -> type[torch.optim.Optimizer]:
        """The plain class; skips the test where its package is absent."""
        module, name = self.path.split(":")
        if not module.startswith(("torch.", "gradcent", "optimizer_cases")):
            pytest.importorskip(module.split(".")[0])
        made = getattr(importlib.import_module(module), name, None)
        if made is None:
            pytest.skip(f"{self.path} is not in this release")
        return made

    @property
    def ours(self) -> type[torch.optim.Optimizer]:
        """The drop-in class."""
        if not hasattr(gradcent.optim, self.name):
            pytest.skip(f"torch {torch.__version__} has no {self.name}")
        return getattr(gradcent.optim, self.name)


ALL = ("foreach", "fused")


def _torch(name: str, options: dict[str, Any], decay: str, forms: tuple[str, ...], **more: Any) -> Case:
    return Case(name, f"torch.optim:{name}", options, decay, forms, drop_in=True, **more)


TORCH = [
    _torch("SGD", {"lr": 0.05, "momentum": 0.9}, COUPLED, ALL, maximize=True),
    _torch("Adam", {"lr": 0.01}, COUPLED, ALL, maximize=True),
    _torch("AdamW", {"lr": 0.01}, DECOUPLED, ALL, maximize=True),
    _torch("Adagrad", {"lr": 0.05}, COUPLED, ALL, maximize=True),
    _torch("RMSprop", {"lr": 0.005, "momentum": 0.5}, COUPLED, ("foreach",), maximize=True),
    _torch("NAdam", {"lr": 0.01}, COUPLED, ("foreach",), maximize=True),
    _torch("RAdam", {"lr": 0.01}, COUPLED, ("foreach",), maximize=True),
    _torch("Adadelta", {"lr": 1.0}, COUPLED, ("foreach",), maximize=True),
    _torch("Adamax", {"lr": 0.01}, COUPLED, ("foreach",), maximize=True),
    _torch("ASGD", {"lr": 0.05}, COUPLED, ("foreach",), maximize=True),
    _torch("Rprop", {"lr": 0.01}, NONE, ("foreach",), maximize=True),
    _torch("Adafactor", {"lr": 0.05}, DECOUPLED, ("foreach",), maximize=True),
    _torch("Muon", {"lr": 0.02}, DECOUPLED, (), matrices_only=True),
    _torch("LBFGS", {"lr": 0.3, "max_iter": 4}, NONE, (), closure=True),
]
# Ours without a twin in torch: its plain form is itself, switched off.
SGDW = Case(
    "SGDW",
    "gradcent.optim:SGDW",
    {"lr": 0.05, "momentum": 0.9, "centralize": False},
    DECOUPLED,
    ALL,
    maximize=True,
)


def _other(path: str, decay: str, known: bool = True, **options: Any) -> Case:
    package, name = path.split(".")[0].split(":")[0], path.split(":")[1]
    maximize = options.pop("maximize", False)
    return Case(
        f"{package}.{name}",
        path,
        {"lr": 0.01, **options},
        decay,
        (),
        maximize,
        decay_known=known,
        float64=False,
    )


class Homemade(torch.optim.Optimizer):
    """What people write themselves: momentum, λw added to the gradient, and nothing that says so."""

    def __init__(self, params: Any, lr: float = 0.05, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                mine = self.state[each]
                gradient = each.grad + group["weight_decay"] * each
                mine["m"] = 0.9 * mine["m"] + gradient if mine else gradient
                each.sub_(group["lr"] * mine["m"])
        return loss


OTHERS = [
    Case("Homemade", "optimizer_cases:Homemade", decay=COUPLED, decay_known=False),
    _other("lion_pytorch:Lion", DECOUPLED),
    _other("schedulefree:AdamWScheduleFree", DECOUPLED),
    _other("schedulefree:SGDScheduleFree", COUPLED),
    _other("schedulefree:RAdamScheduleFree", DECOUPLED),
    _other("timm.optim:Lamb", DECOUPLED),
    _other("timm.optim:Lion", DECOUPLED, maximize=True),
    _other("torchao.optim:AdamW8bit", DECOUPLED),
    _other("bitsandbytes.optim:AdamW", DECOUPLED),
    _other("bitsandbytes.optim:Lion", DECOUPLED),
    _other("pytorch_optimizer:AdaBelief", DECOUPLED),
    _other("pytorch_optimizer:AdamP", DECOUPLED),
    _other("pytorch_optimizer:MADGRAD", COUPLED),
    _other("pytorch_optimizer:Tiger", DECOUPLED),
]

CASES = [*TORCH, SGDW, *OTHERS]
PAPER = [case for case in [*TORCH, SGDW] if case.name in ("SGD", "SGDW", "Adam", "AdamW", "Adagrad")]


def skip_if_torch_lacks_new_groups(name: str) -> None:
    """Adagrad of torch 2.8 and older creates its states in `__init__` only, and fails on a group added later."""
    if name == "Adagrad":
        first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
        optimizer = torch.optim.Adagrad([first])
        optimizer.add_param_group({"params": [second]})
        second.grad = torch.ones(2)
        try:
            optimizer.step()
        except KeyError:
            pytest.skip(f"torch {torch.__version__}: Adagrad cannot step a group that is added later")


def cases(*, of: Iterable[Case] = CASES, where: Callable[[Case], bool] = lambda case: True) -> Any:
    """Parametrize a test over the table."""
    return pytest.mark.parametrize("case", [pytest.param(each, id=each.name) for each in of if where(each)])


def forms(*, of: Iterable[Case] = (*TORCH, SGDW), where: Callable[[Case], bool] = lambda case: True) -> Any:
    """Parametrize over (case, form): torch's loop, foreach and fused steps."""
    listed = [
        pytest.param(case, form, id=f"{case.name}-{form}")
        for case in of
        if where(case)
        for form in ("loop", *case.forms)
    ]
    return pytest.mark.parametrize(("case", "form"), listed)


def flags(case: Case, form: str) -> dict[str, bool]:
    """Return the keyword that chooses torch's execution form."""
    if form == "loop":
        return {"foreach": False} if "foreach" in case.forms else {}
    return {form: True}


class Small(nn.Module):
    """A convolution, a transposed one in two groups, a norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return three numbers per image."""
        return self.head(torch.tanh(self.up(torch.tanh(self.norm(self.conv(x))))).mean((2, 3)))


class Matrices(nn.Module):
    """Only matrices, for Muon."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2 * 5 * 5, 6, bias=False)
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return three numbers per image."""
        return self.head(torch.tanh(self.body(x.flatten(1))))


def model_for(case: Case, dtype: torch.dtype | None = None) -> nn.Module:
    """Make the case's model, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Matrices() if case.matrices_only else Small()
    return model.to(dtype or (torch.float64 if case.float64 else torch.float32))


def loss_of(model: nn.Module, step: int = 0) -> Tensor:
    """Return the loss on the batch of this step."""
    parameter = next(model.parameters())
    maker = torch.Generator().manual_seed(step)
    x = torch.randn(8, 2, 5, 5, generator=maker, dtype=torch.float64)
    y = torch.randn(8, 3, generator=maker, dtype=torch.float64) + 1.0
    return (model(x.to(parameter)) - y.to(parameter)).square().mean()


def run(
    model: nn.Module,
    optimizer: Any,
    steps: int = 5,
    *,
    closure: bool = False,
    after_backward: Callable[[], None] = lambda: None,
    around: Callable[[Callable[[], None]], None] = lambda step: step(),
    start: int = 0,
) -> None:
    """Train for some steps; `after_backward` and `around` are where a test puts its own hand."""
    for step in range(start, start + steps):

        def evaluate(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            after_backward()
            return loss

        with eager():
            if closure:
                around(lambda evaluate=evaluate: optimizer.step(evaluate))
            else:
                evaluate()
                around(optimizer.step)


def eager() -> contextlib.AbstractContextManager[Any]:
    """Some optimizers compile themselves; the contract does not need that."""
    if hasattr(torch.compiler, "set_stance"):
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


def weights(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([each.detach().double().flatten() for each in model.parameters()])


def close(one: nn.Module, two: nn.Module, *, factor: float = 1.0) -> None:
    """Assert that two models have the same weights to within rounding."""
    first, second = weights(one), weights(two)
    wide = next(one.parameters()).dtype is torch.float64
    tolerance = factor * (1e-10 if wide else 2e-5)
    worst = float((first - second).abs().max())
    assert worst <= tolerance, f"weights differ by {worst:.3g}"


def moved(model: nn.Module, case: Case) -> None:
    """Assert that training did something: a test on an optimizer that stands still shows nothing."""
    assert float((weights(model) - weights(model_for(case))).abs().max()) > 1e-4
