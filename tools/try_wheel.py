"""Say what an installed gradcent is, and take one centralized step with it. Used on freshly built wheels."""

from __future__ import annotations

import torch

import gradcent
from gradcent.kernels import native


def main() -> None:
    """Print version, place and kernels; fail if a centralized step moves the sum of a weight vector."""
    print(f"gradcent {gradcent.__version__} in {gradcent.__file__}, torch {torch.__version__}")
    print(native.reason())
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    before = [model[0].weight.detach().double().sum(1), model[2].weight.detach().double().sum(1)]
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
    drift = max(
        float((after.detach().double().sum(1) - start).abs().max())
        for after, start in zip((model[0].weight, model[2].weight), before, strict=True)
    )
    print(f"largest change of a weight sum in 20 steps: {drift:.1e}")
    if not drift < 1e-4:
        raise SystemExit("the weight sums moved: gradients were not centralized")


if __name__ == "__main__":
    main()
