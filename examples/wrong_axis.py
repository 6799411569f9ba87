"""What happens when a transposed convolution is centralized along the wrong axis? Three numbers, 20 seconds.

PyTorch stores nn.ConvTranspose2d's weight as (in, out, k, k). A weight vector of the paper is what one output is
made of: dims 0, 2 and 3. The common rule "all dims but the first" takes dims 1, 2 and 3.

    python examples/wrong_axis.py
"""

import torch
from compare_unet import UNet, drawings
from torch import nn

import gradcent

STEPS = 100
WRONG = {nn.ConvTranspose2d: "rows"}  # what other implementations do


def train(overrides: dict | None, on: bool) -> tuple[gradcent.Monitor, gradcent.Monitor]:
    """Train and watch the transposed convolutions' weight vectors, right and wrong."""
    torch.manual_seed(0)
    model = UNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    if on:
        gradcent.attach(optimizer, model, overrides=overrides)
    right, wrong = gradcent.Monitor(model, every=1), gradcent.Monitor(model, every=1, overrides=WRONG)
    images, discs = drawings(16 * STEPS, seed=1).tensors
    for x, y in zip(images.split(16), discs.split(16), strict=True):
        nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
        right.update()
        wrong.update()
        optimizer.step()
        optimizer.zero_grad()
    return right, wrong


def removed(monitor: gradcent.Monitor) -> float:
    """Share of the transposed convolutions' gradient energy that centralizing removes, in percent."""
    chosen = [reading for reading in monitor.readings if reading.name.startswith("up")]
    return 100 * sum(r.removed * r.energy for r in chosen) / sum(r.energy for r in chosen)


def drift(monitor: gradcent.Monitor) -> float:
    """Largest change of the sum of any of their weight vectors; Theorem 4.1 says none with GC."""
    return max(value for name, value in monitor.drift().items() if name.startswith("up"))


if __name__ == "__main__":
    off, on, turned = train(None, False), train(None, True), train(WRONG, True)
    print(
        f"of the gradient's energy the right axis removes {removed(on[0]):.1f} %, the wrong {removed(on[1]):.1f} %"
    )
    print(f"weight vectors' sums move by {drift(off[0]):.2g} without GC, {drift(on[0]):.1g} with it,")
    print(f"and by {drift(turned[0]):.2g} with GC along the wrong axis: there it does not hold them")
