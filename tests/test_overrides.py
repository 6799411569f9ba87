"""What the user says about layouts: overrides by name and by type, `register`, and other people's models."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import gradcent
from gradcent import Layout, explain
from gradcent.plan import ReasonCode


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(3, 6, 4))  # (E, out, in)
        self.down = nn.Parameter(torch.zeros(3, 6, 4))  # (E, in, out)
        self.bias = nn.Parameter(torch.zeros(3, 6))


@pytest.fixture
def _forget():
    yield
    with contextlib.suppress(ValueError):  # the test removed its rule itself
        gradcent.unregister(Experts)


def layout(model: nn.Module, name: str, **options):
    return next(each.layout for each in explain(model, **options).entries if each.name == name)


def test_stacked_experts_by_override() -> None:
    model = nn.Sequential(Experts())
    assert layout(model, "0.up") is None
    overrides = {"*.up": "stacked_rows", "*.down": "stacked_columns"}
    assert layout(model, "0.up", overrides=overrides) == Layout(1, 1, 18, 4)
    assert layout(model, "0.down", overrides=overrides) == Layout(3, 6, 4, 1)
    assert layout(model, "0.bias", overrides=overrides) is None
    own = {"0.up": Layout(1, 1, 3, 24), "0.down": lambda shape: Layout.stacked_columns(shape)}
    assert layout(model, "0.up", overrides=own) == Layout(1, 1, 3, 24)
    assert layout(model, "0.down", overrides=own) == Layout(3, 6, 4, 1)


def test_overrides_switch_off_and_count_before_rules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert layout(model, "0.weight", overrides={"0.*": None}) is None
    assert layout(model, "1.weight", overrides={"0.*": None}) is not None
    assert layout(model, "0.weight", overrides={nn.Linear: "columns"}) == Layout(1, 4, 4, 1)
    assert layout(model, "0.bias", overrides={nn.Linear: "columns"}) is None  # a type speaks for weights


def test_overrides_that_match_nothing_or_do_not_fit_are_errors() -> None:
    model = nn.Sequential(nn.Linear(4, 6))
    with pytest.raises(ValueError, match=r"'0\.wieght' matches no parameter; names look like 0\.weight"):
        explain(model, overrides={"0.wieght": None})
    with pytest.raises(ValueError, match="Conv2d matches nothing: it is not in the model"):
        explain(model, overrides={nn.Conv2d: None})
    with pytest.raises(ValueError, match=r"0\.weight of shape \(6, 4\).*25 elements"):
        explain(model, overrides={"0.weight": Layout(1, 1, 5, 5)})
    with pytest.raises(ValueError, match="no layout is called 'row'"):
        explain(model, overrides={"0.weight": "row"})
    with pytest.raises(ValueError, match="needs 3 dims"):
        explain(model, overrides={"0.weight": "stacked_rows"})
    with pytest.raises(ValueError, match="needs 2 dims"):
        explain(model, overrides={"0.bias": "rows"})


def test_an_override_hidden_by_an_earlier_one_is_said_to_be_so() -> None:
    model = nn.Sequential(nn.Linear(4, 6))
    with pytest.raises(ValueError, match=r"'0\.weight'.*earlier"):
        explain(model, overrides={"*.weight": "rows", "0.weight": None})


def test_a_type_without_weights_of_its_own_is_said_to_be_so() -> None:
    model = nn.TransformerEncoderLayer(6, 2, 8)
    with pytest.raises(ValueError, match="of its own"):
        explain(model, overrides={nn.TransformerEncoderLayer: None})


@pytest.mark.usefixtures("_forget")
def test_register_teaches_a_module_type() -> None:
    gradcent.register(Experts, "stacked_rows")
    assert layout(Experts(), "up") == Layout(1, 1, 18, 4)
    with pytest.raises(ValueError, match="has a rule already"):
        gradcent.register(Experts, "rows")

    def rule(module: nn.Module, name: str, shape: tuple[int, ...]) -> Layout | str:
        return Layout.stacked_columns(shape) if name == "down" else "not wanted"

    gradcent.register(Experts, rule, kind="conv", replace=True)
    assert layout(Experts(), "down") == Layout(3, 6, 4, 1)
    assert layout(Experts(), "down", layers="linear") is None
    reason = next(each.reason for each in explain(Experts()).entries if each.name == "up")
    assert reason == "not wanted"

    class Sub(Experts):
        pass

    assert layout(Sub(), "down") == Layout(3, 6, 4, 1)
    gradcent.unregister(Experts)
    assert layout(Experts(), "down") is None
    with pytest.raises(ValueError, match="no rule to remove"):
        gradcent.unregister(Experts)


@pytest.mark.usefixtures("_forget")
def test_a_registered_name_says_why_it_leaves_parameters_alone() -> None:
    model = Experts()
    model.router, model.scale = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(4))
    gradcent.register(Experts, "stacked_rows")
    assert {each.name: each.reason for each in explain(model).entries if not each.layout} == {
        "bias": "bias",
        "router": "too few dims for stacked_rows",
        "scale": "a single vector, not a list of weight vectors",
    }


def test_what_register_refuses() -> None:
    with pytest.raises(TypeError, match=r"subclass of nn\.Module"):
        gradcent.register(int, "rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no layout is called"):
        gradcent.register(Experts, "diagonal")
    with pytest.raises(ValueError, match="kind must be"):
        gradcent.register(Experts, "rows", kind="norm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("at", "weights"), ("layers", "conv2d"), ("decay", "l2"), ("kernel", "fast"), ("nonfinite", "ignore")],
)
def test_options_that_do_not_exist_are_refused(name: str, value: str) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=f"{name} must be"):
        gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, **{name: value})
    with pytest.raises(ValueError, match=f"{name} must be"):
        gradcent.optim.SGD(model.parameters(), lr=0.1, model=model, **{name: value})


def test_what_attach_refuses() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match="SparseAdam"):
        gradcent.attach(torch.optim.SparseAdam(model.parameters()), model)
    with pytest.raises(TypeError, match=r"needs a torch\.optim\.Optimizer"):
        gradcent.attach(model, model)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="needs the model"):
        gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1))


def test_transformers_conv1d() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    found = {each.name: each for each in explain(model).entries}
    assert found["transformer.h.0.attn.c_attn.weight"].layout == Layout(1, 8, 24, 1)
    assert found["transformer.h.0.mlp.c_proj.weight"].layout == Layout(1, 32, 8, 1)
    assert found["transformer.wte.weight"].layout is None
    assert "tied to lm_head.weight" in found["transformer.wte.weight"].reason
    assert found["transformer.wpe.weight"].reason == "embedding"
    assert found["transformer.h.0.ln_1.weight"].layout is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_peft_lora(rank: int) -> None:
    """B is left alone; the frozen base weight is planned for when it is trained."""
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=["0"]))
    found = {each.name: each for each in explain(tuned).entries}
    a = next(each for name, each in found.items() if "lora_A" in name)
    b = next(each for name, each in found.items() if "lora_B" in name)
    base = next(each for name, each in found.items() if "base_layer.weight" in name)
    assert a.layout == Layout(1, 1, rank, 6)
    assert b.layout is None
    assert b.why.code is (ReasonCode.TOO_SHORT if rank < 3 else ReasonCode.LORA_B)
    assert base.frozen
    assert not base.centralized
    gradcent.attach(torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.1), tuned)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3_small", "vit_b_16", "convnext_tiny", "efficientnet_b0"]
)
def test_torchvision_models(name: str) -> None:
    """Exactly the weights of Linear, convolution and attention modules, but those of length 1."""
    torchvision = pytest.importorskip("torchvision")
    with torch.device("meta"):
        model = getattr(torchvision.models, name)(weights=None)
    check_model(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "resnetv2_50", "mobilenetv3_small_050", "convnext_atto"]
)
def test_timm_models(name: str) -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name)
    check_model(model)


def check_model(model: nn.Module) -> None:
    wanted = set()
    for path, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.weight[0].numel() > 1:
            wanted.add(f"{path}.weight")
        if isinstance(module, nn.MultiheadAttention):
            wanted.add(f"{path}.in_proj_weight")
    found = {each.name: each for each in explain(model).entries}
    assert {name for name, each in found.items() if each.layout} == wanted
    assert all(each.reason for name, each in found.items() if not each.layout)
    assert all(found[name].layout.vectors == found[name].shape[0] for name in wanted)
