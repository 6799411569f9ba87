"""Controls in place of GC, against the equations written out; and arms by role, which need the first batch."""

from __future__ import annotations

import pytest
import torch
import toy
from torch import nn

import gradcent
from gradcent_lab.data.batches import Batch
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON, Arm, RunConfig
from gradcent_lab.run.controls import CONTROLS, GradientControl
from gradcent_lab.run.example_plan import attach_options
from gradcent_lab.run.scheduler import run_pairs

DECAY = 0.1


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=DECAY)
    model(torch.randn(6, 3, 8, 8, dtype=torch.float64)).square().sum().backward()
    return model, optimizer


def changed(control, seed=0):
    model, optimizer = network()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    GradientControl(control, optimizer, model, seed=seed, attach=False).change_gradients()
    return model, before, {name: p.grad for name, p in model.named_parameters()}


def test_the_rescaled_gradient_has_the_direction_of_the_old_and_the_norm_of_the_centralized_one():
    _, before, after = changed("rescaled")
    for name in ("0.weight", "3.weight"):
        old, new = before[name].flatten(1), after[name].flatten(1)
        centred = old - old.mean(1, keepdim=True)
        assert torch.allclose(new, old * (centred.norm() / old.norm()), rtol=1e-12)
        assert new.norm() < 0.999 * old.norm()
    assert torch.equal(after["0.bias"], before["0.bias"])


def test_the_random_direction_is_removed_from_gradient_and_decay_and_nothing_else_is():
    model, before, after = changed("random direction")
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert torch.equal(after[name], before[name])
            continue
        old, new = (grad[name].flatten(1) + DECAY * weight.detach().flatten(1) for grad in (before, after))
        removed = old - new
        assert torch.linalg.matrix_rank(removed) == 1  # one direction for all vectors of a layer
        direction = removed[0] / removed[0].norm()
        assert torch.allclose(new @ direction, torch.zeros(len(new), dtype=torch.float64), atol=1e-12)
        assert abs(direction.mean() * len(direction) ** 0.5) < 0.9  # not the direction that GC removes


def test_the_random_direction_depends_on_the_seed_alone():
    first, again, other = (changed("random direction", seed)[2]["3.weight"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_centred_images_have_no_mean_and_gradients_stay():
    _, before, after = changed("centred images")
    assert all(torch.equal(before[name], after[name]) for name in before)
    model, optimizer = network()
    images = torch.rand(4, 3, 8, 8)
    centred = GradientControl("centred images", optimizer, model, seed=0, attach=False).centre(images)
    assert torch.allclose(centred.mean((1, 2, 3)), torch.zeros(4), atol=1e-6)
    difference = (images - centred).flatten(1)
    assert torch.allclose(difference, difference[:, :1].expand_as(difference), atol=1e-6)


def test_wrong_controls_are_named():
    model, optimizer = network()
    with pytest.raises(UserError, match="unknown control 'scaled'"):
        GradientControl("scaled", optimizer, model, seed=0, attach=False)
    with pytest.raises(UserError, match="stands in place of GC"):
        GradientControl("rescaled", optimizer, model, seed=0, attach=True)


def test_runs_of_controls_and_roles_are_pairs_and_differ(tmp_path):
    arms = [OFF, ON, Arm("hidden", {"layers": "hidden"}), Arm("input", {"layers": "input"})]
    arms += [Arm(name, control=name) for name in CONTROLS]
    records = run_pairs(toy.experiment(), arms, [0], tmp_path)  # checks weights and batches of all arms
    assert len({record.curves[-1]["train_loss"] for record in records}) == len(arms)


def test_a_control_is_part_of_the_identity_and_old_identities_stay():
    def config(arm):
        return RunConfig("s", "c", arm, 0, "own", {})

    assert config(Arm("x", control="rescaled")).run_id != config(Arm("x")).run_id
    assert "control" not in config(Arm("x")).as_dict()["arm"]


def test_an_example_is_used_only_where_it_is_needed():
    model, _ = network()
    batch = Batch(torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.zeros(2), 2, 1.0)

    def never():
        raise AssertionError("the class rules explain this model")

    assert attach_options(model, {"layers": "conv"}, never, None) == {"layers": "conv"}
    options = attach_options(model, {"layers": "hidden", "at": "update"}, lambda: batch, None)
    assert options["at"] == "update"
    assert "layers" not in options
    assert options["plan"].layout(model[0].weight) is None
    assert options["plan"].layout(model[3].weight) is not None
    wrong = Batch(torch.randn(2, 5), torch.zeros(2), 2, 1.0)
    with pytest.raises(UserError, match="layers='input' needs the model traced"):
        attach_options(model, {"layers": "input"}, lambda: wrong, None)


def test_unknown_modules_are_traced_through_the_experiments_forward():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 5))

        def forward(self, x, scale):
            return scale * (x @ self.weight)

    model = Own()
    batch = Batch({"x": torch.randn(2, 6)}, torch.tensor(2.0), 2, 1.0)
    options = attach_options(
        model, {"layers": "all"}, lambda: batch, lambda net, inputs, targets: net(inputs["x"], targets)
    )
    assert options["plan"].layout(model.weight) == gradcent.Layout.columns((6, 5))
