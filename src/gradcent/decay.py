"""How an optimizer applies weight decay, which decides what is centralized: P(g + λw) or Pg.

Section 3.4 of the paper sets ĝ = P(g + λw). That concerns optimizers that add λw to the gradient
("coupled"). Those that shrink the weight by themselves ("decoupled": AdamW, SGDW) are left as they
are. For an optimizer that is not listed here the user has to say which it is.
"""

from __future__ import annotations

import weakref
from typing import Any, Literal

import torch

DecayKind = Literal["coupled", "decoupled", "none", "unknown"]

# torch's classes; subclasses count as their parent
_TORCH: dict[str, DecayKind] = {
    "SGD": "coupled",
    "Adam": "coupled",
    "AdamW": "decoupled",
    "Adagrad": "coupled",
    "RMSprop": "coupled",
    "NAdam": "coupled",
    "RAdam": "coupled",
    "Adadelta": "coupled",
    "Adamax": "coupled",
    "ASGD": "coupled",
    "Rprop": "none",
    "LBFGS": "none",
    "Adafactor": "decoupled",
    "Muon": "decoupled",
}

# "package.Class" of other people's optimizers, found by reading and by test; no import needed
_OTHERS: dict[str, DecayKind] = {
    "lion_pytorch.Lion": "decoupled",
    "schedulefree.AdamWScheduleFree": "decoupled",
    "schedulefree.RAdamScheduleFree": "decoupled",
    "schedulefree.SGDScheduleFree": "coupled",
    "timm.Lamb": "decoupled",
    "timm.Lion": "decoupled",
    "timm.NAdamW": "decoupled",
    "torchao.AdamW8bit": "decoupled",
    "torchao.AdamW4bit": "decoupled",
    "torchao.AdamWFp8": "decoupled",
    "torchao.Adam8bit": "coupled",
    "torchao.Adam4bit": "coupled",
    "torchao.AdamFp8": "coupled",
    "bitsandbytes.AdamW": "decoupled",
    "bitsandbytes.AdamW8bit": "decoupled",
    "bitsandbytes.AdamW32bit": "decoupled",
    "bitsandbytes.Lion": "decoupled",
    "bitsandbytes.Lion8bit": "decoupled",
}

# Classes of pytorch-optimizer whose `weight_decouple=False` does not mean that λw is added to the gradient (it meets a
# normalized, filtered or orthogonalized one, or divides the weight); found by a test that steps each of them.
_NOT_ADDED = frozenset(
    [
        "AdaGO",
        "AdaMuon",
        "AdamP",
        "AdamWSN",
        "Adan",
        "BCOS",
        "DistributedMuon",
        "Grams",
        "GrokFastAdamW",
        "Kron",
        "LaProp",
        "Lamb",
        "MARS",
        "Muon",
        "NorMuon",
        "NovoGrad",
        "SGDP",
        "SGDSaI",
        "SPlus",
        "TAM",
    ]
)


def decay_kind(optimizer: torch.optim.Optimizer, group: dict[str, Any], chosen: str = "auto") -> DecayKind:
    """Return how this param group decays its weights, or refuse a choice that contradicts the optimizer."""
    own = _own_kind(optimizer, group)
    if chosen == "auto":
        return own
    if chosen == "coupled" and own == "decoupled":
        raise ValueError(
            f"decay='coupled' does not fit {type(optimizer).__name__}, whose decay is decoupled: it never adds "
            "λw to the gradient, so there is nothing to project. Leave decay='auto'"
        )
    if chosen == "coupled" and "weight_decay" not in group:
        raise ValueError(
            f"decay='coupled' does not fit {type(optimizer).__name__}, which has no weight_decay in its param "
            "groups: there is no λw to project. Leave decay='auto'"
        )
    return "none" if own == "none" else chosen  # type: ignore[return-value]


def _own_kind(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> DecayKind:
    strength = group.get("weight_decay", 0.0)
    if strength is None or (not isinstance(strength, torch.Tensor) and not strength):
        return "none"
    # Adam, NAdam, RAdam of torch; pytorch-optimizer's classes
    for flag in ("decoupled_weight_decay", "weight_decouple"):
        if flag in group and not group[flag] and _is_not_added(optimizer):
            return "unknown"
        if flag in group:
            return "decoupled" if group[flag] else "coupled"
    cls = type(optimizer)
    if cls not in _known:
        _known[cls] = _kind_of_class(cls)
    return _known[cls]


# asked in every step
_known: weakref.WeakKeyDictionary[type, DecayKind] = weakref.WeakKeyDictionary()


def _kind_of_class(cls: type) -> DecayKind:
    for ancestor in cls.__mro__:
        own = ancestor.__dict__.get("decay_kind")
        if own is not None:
            return own  # type: ignore[no-any-return]
        package = ancestor.__module__.split(".")[0]
        if package == "torch" and ancestor.__name__ in _TORCH:
            return _TORCH[ancestor.__name__]
        if f"{package}.{ancestor.__name__}" in _OTHERS:
            return _OTHERS[f"{package}.{ancestor.__name__}"]
    return "unknown"


def _is_not_added(optimizer: torch.optim.Optimizer) -> bool:
    return any(
        ancestor.__name__ in _NOT_ADDED and ancestor.__module__.startswith("pytorch_optimizer.")
        for ancestor in type(optimizer).__mro__
    )
