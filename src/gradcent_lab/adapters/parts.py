"""What the adapters share: samples with another trainer's collation, and parameters that remember their model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils.data import Dataset, IterableDataset

from gradcent_lab.errors import UserError


class Rows(Dataset[Any]):
    """The samples of a DataLoader's dataset, collated as the DataLoader does and split into (inputs, targets)."""

    def __init__(self, loader: Any, split: Callable[[Any], tuple[Any, Any]], what: str) -> None:
        data = getattr(loader, "dataset", None)
        if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise UserError(
                f"{what} must be a DataLoader over a Dataset with a length, so that both arms see the same batches, "
                f"not over {type(loader if data is None else data).__name__}"
            )
        self.data, self.collate_fn, self.split = data, loader.collate_fn, split

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]

    def collate(self, samples: Sequence[Any]) -> tuple[Any, Any]:
        """Return (inputs, targets) of a batch."""
        return self.split(self.collate_fn(list(samples)))


class ModelGroups(list[Any]):
    """Param groups of a model that also name the model: the other trainer makes its optimizer from the model."""

    def __init__(self, model: nn.Module, groups: Sequence[Any]) -> None:
        super().__init__(groups)
        self.model = model


class FromUser:
    """A function whose source file identifies the runs; `func` is the user's function that it calls."""

    def __init__(self, func: Callable[[], Any], call: Callable[[], Any]) -> None:
        self.func, self.call = func, call

    def __call__(self) -> Any:
        """Call it."""
        return self.call()
