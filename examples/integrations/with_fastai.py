"""fastai with GC: a callback. Its own optimizers get GC at the gradient; a wrapped torch one also at the update."""

from __future__ import annotations

from functools import partial

import torch
from fastai.basics import DataLoader, DataLoaders, Learner, OptimWrapper
from torch import nn

import gradcent
from gradcent.integrations.fastai import CentralizeCallback


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))
    before = model[0].weight.detach().mean(1)
    items = [(torch.randn(16), torch.tensor(index % 4)) for index in range(64)]
    learner = Learner(
        DataLoaders(DataLoader(items, bs=8), DataLoader(items, bs=8), device="cpu"),
        model,
        loss_func=nn.CrossEntropyLoss(),
        opt_func=partial(OptimWrapper, opt=torch.optim.AdamW),
        cbs=CentralizeCallback(at="update"),  # the one argument
    )
    with learner.no_logging():
        learner.fit(3, lr=1e-2)
    drift = (model[0].weight.detach().mean(1) - before).abs().max().item()
    print(gradcent.explain(model).summary())
    print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
