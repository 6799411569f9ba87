"""How an optimizer applies weight decay, which decides what is centralized: P(g + λw) or Pg.

Section 3.4 of the paper sets ĝ = P(g + λw). That concerns optimizers that add λw to the gradient
("coupled"). Optimizers that shrink the weight directly ("decoupled": AdamW, SGDW) are left as they
are. A class that is not listed here, or a subclass that overrides `step`, is "unknown": the user
passes `decay=`.
"""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch

DecayKind = Literal["coupled", "decoupled", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class ByFlag:
    """The kind depends on a boolean: a key of the param group, or an attribute of the optimizer."""

    key: str
    absent: DecayKind  # older releases and their checkpoints do not have the key
    false: DecayKind = "coupled"

    def kind(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> DecayKind:
        """Return the kind of this param group."""
        flag = group.get(self.key, getattr(optimizer, self.key, None))
        if flag is None:
            return self.absent
        return "decoupled" if flag else self.false


# torch's classes
_TORCH: dict[str, DecayKind | ByFlag] = {
    "SGD": "coupled",
    "Adam": ByFlag("decoupled_weight_decay", absent="coupled"),
    "AdamW": ByFlag("decoupled_weight_decay", absent="decoupled"),
    "Adagrad": "coupled",
    "RMSprop": "coupled",
    "NAdam": ByFlag("decoupled_weight_decay", absent="coupled"),
    "RAdam": ByFlag("decoupled_weight_decay", absent="coupled"),
    "Adadelta": "coupled",
    "Adamax": "coupled",
    "ASGD": "coupled",
    "Rprop": "none",
    "LBFGS": "none",
    "Adafactor": "decoupled",
    "Muon": "decoupled",
}

# Other packages, as "package.Class", so that nothing is imported. Each kind was read in the package's
# source; tests/test_decay_kinds.py checks all but the GPU-only ones.
_OTHERS: dict[str, DecayKind | ByFlag] = {
    "apex.FusedAdam": ByFlag("adam_w_mode", absent="decoupled"),
    "came_pytorch.CAME": "decoupled",
    "deepspeed.DeepSpeedCPUAdam": ByFlag("adam_w_mode", absent="decoupled"),
    "deepspeed.FusedAdam": ByFlag("adam_w_mode", absent="decoupled"),
    # all classes of heavyball; its NAdam and SOAPNAdam mix both forms unless the flag is set
    "heavyball.BaseOpt": ByFlag("decoupled_weight_decay", absent="decoupled", false="unknown"),
    "lion_pytorch.Lion": "decoupled",
    "muon.Muon": "decoupled",
    "muon.MuonWithAuxAdam": "decoupled",
    "muon.SingleDeviceMuon": "decoupled",
    "muon.SingleDeviceMuonWithAuxAdam": "decoupled",
    "prodigyopt.Prodigy": ByFlag("decouple", absent="unknown"),
    "schedulefree.AdamWScheduleFree": "decoupled",
    "schedulefree.RAdamScheduleFree": "decoupled",
    "schedulefree.SGDScheduleFree": "coupled",
    "timm.AdamWLegacy": "decoupled",
    "timm.Lamb": "decoupled",
    "timm.Lion": "decoupled",
    "timm.Muon": "decoupled",
    "timm.NAdamLegacy": "coupled",
    "timm.NAdamW": "decoupled",
    "timm.RAdamLegacy": "decoupled",
    "timm.RMSpropTF": ByFlag("decoupled_decay", absent="unknown"),
    "timm.SGDW": "decoupled",
    "torchao.AdamW8bit": "decoupled",
    "torchao.AdamW4bit": "decoupled",
    "torchao.AdamWFp8": "decoupled",
    "torchao.Adam8bit": "coupled",
    "torchao.Adam4bit": "coupled",
    "torchao.AdamFp8": "coupled",
}
# bitsandbytes: its Adam decays as AdamW does. The 8-bit, 32-bit and paged classes share these kernels.
_BITSANDBYTES: dict[str, DecayKind] = {
    "Adam": "decoupled",
    "AdamW": "decoupled",
    "AdEMAMix": "decoupled",
    "LAMB": "decoupled",
    "Lion": "decoupled",
    "Adagrad": "coupled",
    "LARS": "coupled",
    "RMSprop": "coupled",
    "SGD": "coupled",
}
_OTHERS |= {
    f"bitsandbytes.{paged}{name}{bits}": kind
    for name, kind in _BITSANDBYTES.items()
    for paged in ("", "Paged")
    for bits in ("", "8bit", "32bit")
}

# Classes of pytorch-optimizer whose `weight_decouple=False` does not mean that λw is added to the gradient (it meets a
# normalized, filtered or orthogonalized one, or divides the weight); checked by a test that steps each of them.
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
    known = _known_kind(optimizer, group)
    if chosen == "auto":
        return known
    if chosen == "coupled" and known == "decoupled":
        raise ValueError(
            f"decay='coupled' does not fit {type(optimizer).__name__}, whose decay is decoupled: it never adds "
            "λw to the gradient, so there is nothing to project. Leave decay='auto'"
        )
    if chosen == "coupled" and "weight_decay" not in group:
        raise ValueError(
            f"decay='coupled' does not fit {type(optimizer).__name__}, which has no weight_decay in its param "
            "groups: there is no λw to project. Leave decay='auto'"
        )
    return "none" if known == "none" else chosen  # type: ignore[return-value]


def _known_kind(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> DecayKind:
    strength = group.get("weight_decay", 0.0)
    if strength is None or (not isinstance(strength, torch.Tensor) and not strength):
        return "none"
    cls = type(optimizer)
    if cls not in _kinds:
        _kinds[cls] = _kind_of_class(cls)
    kind = _kinds[cls]
    if isinstance(kind, ByFlag):
        return kind.kind(optimizer, group)
    if kind == "unknown" and "weight_decouple" in group:  # pytorch-optimizer's flag
        if group["weight_decouple"]:
            return "decoupled"
        return "unknown" if _is_not_added(optimizer) else "coupled"
    return kind


# read in every step
_kinds: weakref.WeakKeyDictionary[type, DecayKind | ByFlag] = weakref.WeakKeyDictionary()


def _kind_of_class(cls: type) -> DecayKind | ByFlag:
    """Return the kind of the nearest known class, "unknown" if a class before it overrides `step`."""
    for index, ancestor in enumerate(cls.__mro__):
        declared = ancestor.__dict__.get("decay_kind")
        if declared is not None:
            return declared  # type: ignore[no-any-return]
        package = ancestor.__module__.split(".")[0]
        if package == "torch" and ancestor.__name__ in _TORCH:
            return _TORCH[ancestor.__name__]
        if f"{package}.{ancestor.__name__}" in _OTHERS:
            return _OTHERS[f"{package}.{ancestor.__name__}"]
        if not _is_ours(ancestor) and _overrides_step(ancestor, cls.__mro__[index + 1 :]):
            return "unknown"
    return "unknown"


def _is_ours(cls: type) -> bool:
    """Whether gradcent created this class: its step does what the plain class's step does."""
    return cls.__module__.startswith("gradcent.") or "_gradcent_plain" in cls.__dict__


def _overrides_step(cls: type, parents: tuple[type, ...]) -> bool:
    """Whether the class has its own `step`; torch's hook wrapper around an inherited one does not count."""
    if "step" not in cls.__dict__:
        return False
    inherited = next((parent.__dict__["step"] for parent in parents if "step" in parent.__dict__), None)
    return inherited is None or inspect.unwrap(cls.__dict__["step"]) is not inspect.unwrap(inherited)


def _is_not_added(optimizer: torch.optim.Optimizer) -> bool:
    return any(
        ancestor.__name__ in _NOT_ADDED and ancestor.__module__.startswith("pytorch_optimizer.")
        for ancestor in type(optimizer).__mro__
    )
