"""Networks: the parameter counts of the design, and options that compose."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcent
from gradcent_lab import models
from gradcent_lab.errors import UserError
from gradcent_lab.models.options import Standardize
from gradcent_lab.recipes.imagenet import TABLE5

COUNTS = {
    "R18": 11_220_132,
    "R50": 23_705_252,
    "R101": 42_697_380,
    "X29": 27_288_996,
    "V11": 9_277_284,
    "D121": 7_048_548,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name):
    with torch.device("meta"):
        model = models.make({"name": name}, 100)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", ["D63", "D121"])
def test_dense_networks_have_the_layers_of_their_name(name):
    with torch.device("meta"):
        model = models.make({"name": name, "growth": 4}, 100)
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == int(name[1:])


def test_stems_and_shapes_of_the_cifar_forms():
    with torch.device("meta"):
        plain, grouped = models.make({"name": "R18"}, 100), models.make({"name": "X29"}, 100)
    assert plain.conv1.kernel_size == (3, 3)
    assert grouped.conv1.kernel_size == (1, 1)
    assert grouped.layer1[0].conv2.groups == 4
    assert not any(isinstance(m, nn.MaxPool2d) for m in plain.modules())


def test_group_norm_and_weight_standardization_compose():
    model = models.make({"name": "R8", "width": 8, "norm": "gn", "weight_standardization": True}, 10)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    weight = model.layer1[0].conv1.weight.flatten(1)
    assert torch.allclose(weight.mean(1), torch.zeros(8), atol=1e-6)
    assert torch.allclose(weight.std(1), torch.ones(8), atol=1e-2)
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    stored = model.layer1[0].conv1.parametrizations.weight.original
    assert stored.grad.abs().sum() > 0
    plan = gradcent.explain(model)
    assert plan.layout(stored) == gradcent.Layout(1, 1, 8, 72)  # GC reaches the stored weight


def channels_per_group(model):
    return [m.num_channels // m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)]


def test_groups_of_group_norm_can_be_chosen():
    chosen = channels_per_group(models.make({"name": "R8", "width": 16, "norm": "gn", "groups": 8}, 10))
    assert chosen == [2, 2, 2, 4, 4, 4, 8, 8, 8]
    default = channels_per_group(models.make({"name": "R8", "width": 16, "norm": "gn"}, 10))
    assert default == [1, 1, 1, 1, 1, 1, 2, 2, 2]  # the runs of earlier versions repeat


@pytest.mark.parametrize("scale", TABLE5.scales, ids=lambda scale: scale.name)
def test_channels_share_groups_at_every_scale_of_table_5(scale):
    for cell in TABLE5.cells(scale, {name: switch.choices[0] for name, switch in TABLE5.switches.items()}):
        with torch.device("meta"):
            per_group = channels_per_group(models.make(cell.settings["model"], 100))
        assert bool(per_group) == cell.name.endswith("GN")
        assert min(per_group, default=2) == 2


def test_batch_norm_cancels_a_bias_and_group_norm_does_not():
    """What the note of table 5 says about the biases of the released convolutions."""
    torch.manual_seed(0)
    x, bias = torch.randn(8, 4, 5, 5, dtype=torch.float64), torch.randn(4, 1, 1, dtype=torch.float64)
    batch, group = nn.BatchNorm2d(4).double(), nn.GroupNorm(2, 4).double()
    assert torch.allclose(batch(x + bias), batch(x))
    assert not torch.allclose(group(x + bias), group(x), atol=0.1)
    common = bias.view(2, 2).mean(1).repeat_interleave(2).view(4, 1, 1)  # of the two channels of a group
    assert torch.allclose(group(x + common), group(x))
    assert torch.allclose(group(x + bias), group(x + bias - common))
    assert "BN cancels a bias, GN only what the biases of a group have in common" in " ".join(TABLE5.notes)


def test_weight_standardization_is_the_authors():
    """Against the code that its authors released and MMDetection uses: divided by the unbiased std plus 1e-5."""
    weight = 1e-5 * torch.randn(4, 3, 2, 2)  # so small that the place of the 1e-5 matters
    mean = weight.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True).mean(dim=3, keepdim=True)
    centred = weight - mean
    std = centred.view(centred.size(0), -1).std(dim=1).view(-1, 1, 1, 1) + 1e-5
    assert torch.allclose(Standardize()(weight), centred / std, rtol=1e-4)


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_pretrained_weights_are_loaded_but_for_the_head(tmp_path, kind):
    source = models.make({"name": "R8", "width": 8}, 20).half()
    path = tmp_path / f"w.{kind}"
    if kind == "pt":
        torch.save(source.state_dict(), path)
    else:
        from safetensors.torch import save_file

        save_file(source.state_dict(), path)
    model = models.make({"name": "R8", "width": 8, "pretrained": f"w.{kind}"}, 10, tmp_path)
    assert torch.equal(model.conv1.weight, source.conv1.weight.float())
    assert model.fc.weight.shape == (10, 32)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="unknown network 'R19'"):
        models.make({"name": "R19"}, 10)
    with pytest.raises(UserError, match="has no option 'growth'"):
        models.make({"name": "R8", "growth": 3}, 10)
    with pytest.raises(UserError, match="unknown norm 'ln'"):
        models.make({"name": "R8", "norm": "ln"}, 10)
    with pytest.raises(UserError, match=r"groups=3 does not divide the 8 channels of bn1$"):
        models.make({"name": "R8", "width": 8, "norm": "gn", "groups": 3}, 10)
    with pytest.raises(UserError, match=r"groups=32 does not divide the 16 channels of layer1\.0\.bn1$"):
        models.make({"name": "X29", "width": 16, "norm": "gn", "groups": 32}, 10)
    with pytest.raises(UserError, match=r"groups=0: give the number of groups"):
        models.make({"name": "R8", "norm": "gn", "groups": 0}, 10)
    with pytest.raises(UserError, match="groups=8 belongs to norm gn"):
        models.make({"name": "R8", "groups": 8}, 10)
    with pytest.raises(UserError, match=r"weights file .* does not exist"):
        models.make({"name": "R8", "pretrained": "none.pt"}, 10, tmp_path)
    (tmp_path / "bad.pt").write_bytes(b"rubbish")
    with pytest.raises(UserError, match="not a plain state dict"):
        models.make({"name": "R8", "pretrained": "bad.pt"}, 10, tmp_path)
    torch.save(models.make({"name": "R8", "width": 4}, 10).state_dict(), tmp_path / "other.pt")
    with pytest.raises(UserError, match="does not fit the network"):
        models.make({"name": "R8", "width": 8, "pretrained": "other.pt"}, 10, tmp_path)


def test_torchvisions_weights_come_from_its_cache_and_are_fetched_only_when_asked(tmp_path, monkeypatch):
    import torchvision

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.delenv("GRADCENT_DOWNLOAD", raising=False)
    asked = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *words, **more: asked.append(words))
    spec = {"name": "resnet18", "pretrained": "torchvision"}
    with pytest.raises(UserError, match=r"are not at .*resnet18-\w+\.pth: run with --download, or put https"):
        models.make(spec, 10)
    assert not asked
    plain = torchvision.models.resnet18()
    (tmp_path / "checkpoints").mkdir()
    file = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    torch.save(plain.state_dict(), tmp_path / "checkpoints" / file)
    made = models.make(spec, 10)
    assert torch.equal(made.conv1.weight, plain.conv1.weight)
    assert made.fc.out_features == 10


def test_a_failed_fetch_is_one_line(tmp_path, monkeypatch):
    from urllib.error import URLError

    def unreachable(*words, **more):
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setenv("GRADCENT_DOWNLOAD", "1")
    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    with pytest.raises(UserError, match=r"cannot download https.* \(no network\): put the file at"):
        models.make({"name": "resnet18", "pretrained": "torchvision"}, 10)
