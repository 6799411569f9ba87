"""timm with GC: import the integration, and every optimizer has a second name that ends in `gc`."""

from __future__ import annotations

import timm
import timm.optim
import torch

import gradcent
import gradcent.integrations.timm  # the one line; then opt="sgdgc", "adamwgc", "lookahead_radamgc", …


def main() -> None:
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=4, drop_rate=0.0)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamwgc", lr=1e-3, weight_decay=0.05, at="update")
    before = {
        name: each.detach().clone()
        for name, each in model.named_parameters()
        if each.ndim == 4 and each[0].numel() > 1
    }
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 64, 64)), torch.arange(4))
        loss.backward()
        optimizer.step()
    moved = {name: model.get_parameter(name).detach() - each for name, each in before.items()}
    drift = max(each.flatten(1).mean(1).abs().max().item() for each in moved.values())
    print(gradcent.attached(optimizer))
    print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
