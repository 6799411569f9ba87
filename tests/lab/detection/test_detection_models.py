import pytest
import torch
from detection_sets import real
from torch import nn

import gradcent
from gradcent_lab import recipes
from gradcent_lab.detection import models
from gradcent_lab.errors import UserError
from gradcent_lab.run.batch_norm import batch_norms

TINY = {"short": 64, "long": 96, "fpn": 16, "fc": 32, "anchor": 8, "proposals": (20, 10), "samples": (16, 16)}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("masks", "published"), [(False, 41_755_286), (True, 44_401_393)])
def test_r50_has_torchvisions_published_size(masks, published):
    with torch.device("meta"):
        model = models.make({"backbone": "R50", "masks": masks}, 90)
    assert parameters(model) == published


@pytest.mark.parametrize(("name", "twin"), [("R101", "resnet101"), ("X101-64x4d", "resnext101_64x4d")])
def test_backbones_are_the_ones_torchvision_has_weights_for(name, twin):
    import torchvision

    with torch.device("meta"):
        body = models.make({"backbone": name}, 80).backbone.body
        expected = torchvision.models.get_model(twin).state_dict()
    shapes = {k: v.shape for k, v in expected.items() if not k.startswith("fc.") and "num_batches" not in k}
    assert {k: v.shape for k, v in body.state_dict().items()} == shapes


def test_resnext_32x4d_has_its_published_size():
    with torch.device("meta"):
        body = models.make({"backbone": "X101-32x4d", "norm": "bn"}, 80).backbone.body
    assert parameters(body) + 2048 * 1000 + 1000 == 44_177_704  # ResNeXt-101 32×4d, 44.18 M


def test_frozen_parts_stay_out_of_training():
    model = models.make({"backbone": "R14", **TINY}, 2)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert {n for n in frozen} == {
        n for n in frozen if n.startswith(("backbone.body.conv1", "backbone.body.layer1"))
    }
    assert not any("bn" in name for name in trained | frozen), "frozen BN has no parameters at all"
    assert any(name.startswith("backbone.body.layer2") for name in trained)
    assert len(models.trained(model)) == len(trained)
    with pytest.raises(UserError, match="0 to 5"):
        models.make({"backbone": "R14", "trainable": 6, **TINY}, 2)


def test_group_norm_with_weight_standardization():
    spec = {"backbone": "R14", "norm": "gn", "head": "4conv1fc", "weight_standardization": True}
    model = models.make({**spec, "trainable": 5, "masks": True, **TINY}, 2)
    kinds = {type(module) for module in model.modules()}
    assert nn.GroupNorm in kinds
    assert nn.BatchNorm2d not in kinds
    for part in (
        model.backbone.body.layer2[0].conv2,
        model.backbone.fpn.layer_blocks[0][0],
        model.roi_heads.mask_head[0][0],
    ):
        assert part.weight.mean((1, 2, 3)).abs().max() < 1e-6
    assert sum(isinstance(m, nn.Conv2d) for m in model.roi_heads.box_head.modules()) == 4
    assert sum(isinstance(m, nn.Linear) for m in model.roi_heads.box_head.modules()) == 1
    assert not nn.utils.parametrize.is_parametrized(model.rpn.head.cls_logits)
    plan = {row["parameter"]: row for row in gradcent.explain(model).rows()}
    row = plan["backbone.body.layer2.0.conv2.parametrizations.weight.original"]
    assert row["length"] == 128 * 9
    deconvolution = plan["roi_heads.mask_predictor.conv5_mask.weight"]  # (in 16, out 16, 2, 2)
    assert (deconvolution["vectors"], deconvolution["length"]) == (16, 16 * 4)


@pytest.mark.parametrize(("choice", "kept"), [("inputs", (0, 2, 3)), ("released", (1, 2, 3))])
def test_the_deconvolution_switch_of_table_9_chooses_the_axis_of_the_mask_head(choice, kept):
    """The arm of table 9 on its detector: a step keeps the sums over the dims that the switch says, and no others."""
    study = recipes.get("table9").study("smoke", {"deconvolution": choice})
    model = models.make(study.cells[0].settings["model"], 1)
    weight = model.roi_heads.mask_predictor.conv5_mask.weight  # (in, out, 2, 2)
    optimizer = torch.optim.SGD(models.trained(model), lr=1.0)
    gradcent.attach(optimizer, model, **study.arms[1].attach)
    layout = gradcent.attached(optimizer).plan.layout(weight)
    assert (layout == gradcent.explain(model).layout(weight)) == (choice == "inputs")
    before = weight.detach().clone()
    torch.manual_seed(0)
    for parameter in models.trained(model):
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    change = weight.detach() - before
    for dims in ((0, 2, 3), (1, 2, 3)):
        assert (float(change.mean(dims).abs().max()) < 1e-5) == (dims == kept)
    convolution = model.roi_heads.mask_head[0][0].weight  # the switch changes no other layer
    assert gradcent.attached(optimizer).plan.layout(convolution) == gradcent.explain(model).layout(
        convolution
    )


def test_pretrained_file_is_loaded():
    root = real("weights")
    from safetensors.torch import load_file

    file = "weights/resnet18_tinyimagenet200_fp16.safetensors"
    model = models.make({"backbone": "R18", "pretrained": file, **TINY}, 1, root)
    state = load_file(str(root / file))
    body = model.backbone.body.state_dict()
    for name in ("conv1.weight", "layer4.1.bn2.running_var", "layer3.0.downsample.0.weight"):
        assert torch.equal(body[name], state[name].float())
    with pytest.raises(UserError, match="does not fit the network"):
        models.make({"backbone": "R14", "pretrained": file, **TINY}, 1, root)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"backbone": "R51"}, "no backbone is called 'R51'"),
        ({"backbone": "R14", "norm": "ln"}, "unknown norm 'ln'"),
        ({"backbone": "R14", "head": "3fc"}, "box head '3fc' is not known"),
        ({"backbone": "R14", "wide": 3}, "no option 'wide'"),
        (
            {"backbone": "X101-32x4d", "pretrained": "torchvision"},
            "torchvision has no weights for X101-32x4d",
        ),
    ],
)
def test_what_does_not_exist_is_refused(spec, words):
    with torch.device("meta"), pytest.raises(UserError, match=words):
        models.make(spec, 2)


def test_batch_norm_of_the_framework_trains_scales_and_keeps_statistics():
    """MMDetection's norm_eval with requires_grad: the affine parameters train, the statistics never change."""
    model = models.make({"backbone": "R14", "norm": "fixed statistics", **TINY}, 2).train()
    norm = model.backbone.body.layer2[0].bn1
    assert not norm.training
    assert norm.weight.requires_grad
    assert not model.backbone.body.layer1[0].bn1.weight.requires_grad  # of the frozen first stage
    before = {name: value.clone() for name, value in norm.named_buffers()}
    images = [3 + torch.rand(3, 64, 64) for _ in range(2)]
    targets = [{"boxes": torch.tensor([[4.0, 4.0, 40.0, 40.0]]), "labels": torch.tensor([1])}] * 2
    sum(model(images, targets).values()).backward()
    assert norm.weight.grad.abs().sum() > 0
    assert all(torch.equal(value, before[name]) for name, value in norm.named_buffers())
    assert batch_norms(model) == []  # nothing to re-estimate before an evaluation


def test_bgr_preprocessing_is_caffes(tmp_path):
    """The network sees what Caffe's convention would give it: BGR from 0 to 255 minus the mean, unscaled."""
    spec = {"backbone": "R14", "norm": "gn", **TINY}
    plain = models.make(spec, 2)
    file = tmp_path / "gn.pt"
    torch.save({k: v for k, v in plain.backbone.body.state_dict().items()}, file)
    model = models.make({**spec, "pretrained": str(file), "normalize": "bgr"}, 2).eval()
    image = torch.rand(3, 64, 64)
    seen = model.transform.normalize(image)
    ours = model.backbone.body.conv1(seen[None])
    caffe = 255 * image.flip(0) - torch.tensor([102.9801, 115.9465, 122.7717])[:, None, None]
    theirs = nn.functional.conv2d(caffe[None], plain.backbone.body.conv1.weight, stride=2, padding=3)
    assert torch.allclose(ours, theirs, atol=1e-2, rtol=1e-4)
