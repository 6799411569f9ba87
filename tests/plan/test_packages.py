"""Models of other packages: explained, and trained for a few steps against the equation in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trace_models import columns, rows, stacked_columns, stacked_rows

import gradcent

Pick = Callable[[Tensor], list[Tensor]]
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
}
MOE: dict[str, tuple[str, dict[str, Any], Pick]] = {
    "Mixtral": ("mixtral", {"num_local_experts": 4, "head_dim": 8}, stacked_rows),
    "OLMoE": ("olmoe", {"num_experts": 4}, stacked_rows),
    "Qwen3-MoE": (
        "qwen3_moe",
        {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": 8, "decoder_sparse_step": 1},
        stacked_rows,
    ),
    "GPT-OSS": ("gpt_oss", {"num_local_experts": 4, "head_dim": 8}, stacked_columns),
    "Llama 4": (
        "llama4_text",
        {"num_local_experts": 4, "head_dim": 8, "intermediate_size_mlp": 24, "interleave_moe_layer_step": 1},
        stacked_columns,
    ),
    "DeepSeek-V3": (
        "deepseek_v3",
        {
            "n_routed_experts": 4,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
        },
        stacked_rows,
    ),
}


def _moe(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    kind, options, _ = MOE[name]
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**(SMALL | options))
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    model.set_experts_implementation("eager")  # the others do not take float64
    return model


def _check_training(
    model: nn.Module,
    run: Callable[[nn.Module], Tensor],
    pick_of: Callable[[str, Tensor], Pick | None],
    **options: Any,
) -> None:
    """Train three steps with and without gradcent; the second is centralized vector by vector, by hand."""
    reference = copy.deepcopy(model)
    settings = {"lr": 0.01, "momentum": 0.9}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], **settings)
    gradcent.attach(optimizer, model, **options)
    trained = {name: p for name, p in reference.named_parameters() if p.requires_grad}
    plain = torch.optim.SGD(trained.values(), **settings)
    plan = gradcent.attached(optimizer).plan
    planned = {entry.name for entry in plan.entries if entry.layout is not None}
    expected = {name for name, p in trained.items() if pick_of(name, p) is not None}
    assert planned == expected
    for _ in range(3):
        for net, stepper in ((model, optimizer), (reference, plain)):
            stepper.zero_grad()
            run(net).backward()
        for name, parameter in trained.items():
            pick = pick_of(name, parameter)
            if pick is not None and parameter.grad is not None:
                for vector in pick(parameter.grad):
                    vector -= vector.mean()
        optimizer.step()
        plain.step()
    for ours, truth in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("name", MOE)
def test_mixtures_of_experts(name: str) -> None:
    model = _moe(name)
    tokens = torch.randint(1, 64, (2, 16))
    experts = MOE[name][2]

    def pick_of(parameter_name: str, parameter: Tensor) -> Pick | None:
        if "embed" in parameter_name or "norm" in parameter_name or "bias" in parameter_name:
            return None
        if "experts" in parameter_name and parameter.ndim == 3:
            return experts
        return rows if parameter.ndim == 2 else None

    rules = gradcent.explain(model)
    traced = gradcent.explain(model, example={"input_ids": tokens})
    assert [entry.layout for entry in rules.entries] == [entry.layout for entry in traced.entries]
    stacked = [entry for entry in rules.entries if len(entry.shape) == 3]
    assert stacked
    assert all(entry.source == "rule" and entry.layout is not None for entry in stacked)
    _check_training(model, lambda m: m(input_ids=tokens, labels=tokens).loss, pick_of)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_every_implementation_of_the_experts_is_traced(implementation: str) -> None:
    model = _moe("Mixtral").float()
    model.set_experts_implementation(implementation)
    from gradcent.plan.tracing import trace

    found = trace(model, {"input_ids": torch.randint(1, 64, (2, 16))})
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3:
            expected = gradcent.Layout.stacked_rows(tuple(parameter.shape))
            assert found[parameter].layout == expected, (name, found[parameter])


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_lora_on_a_mixture_of_experts() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = peft.get_peft_model(
        _moe("Mixtral"),
        peft.LoraConfig(r=4, target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"]),
    )
    tokens = torch.randint(1, 64, (2, 16))
    plan = gradcent.explain(model, example={"input_ids": tokens})  # a disagreement would be an error here
    adapters = {entry.name: entry for entry in plan.entries if "lora_" in entry.name}
    q_projections = [entry for name, entry in adapters.items() if "q_proj.lora_A" in name]
    assert len(q_projections) == 2
    assert all(entry.layout == gradcent.Layout.rows((4, 32)) for entry in q_projections)
    assert any("experts" in name for name in adapters)

    # Both factors of the adapters are Linear weights (out, in); B is left alone.
    _check_training(
        model.double(),
        lambda m: m(input_ids=tokens, labels=tokens).loss,
        lambda name, _: rows if "lora_A" in name else None,
        example={"input_ids": tokens},
    )


@pytest.fixture
def graph() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(10, 6).double(), torch.randint(0, 10, (2, 40)), torch.randint(0, 3, (40,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["GCN", "GAT", "GraphSAGE", "RGCN", "HeteroLinear"])
def test_pytorch_geometric(name: str, graph: tuple[Tensor, Tensor, Tensor]) -> None:
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    x, edges, kinds = graph
    if name == "RGCN":
        model, arguments = geometric.RGCNConv(6, 5, 3), (x, edges, kinds)
    elif name == "HeteroLinear":
        model, arguments = geometric.HeteroLinear(6, 5, 3), (x, kinds[:10])
    else:
        model, arguments = getattr(geometric, name)(6, 8, 2, 3), (x, edges)
    model = model.double().eval()

    def pick_of(parameter_name: str, parameter: Tensor) -> Pick | None:
        if name in ("RGCN", "HeteroLinear") and parameter.ndim == 3:
            return stacked_columns
        if parameter_name == "root":
            return columns
        return rows if parameter.ndim == 2 and parameter_name.endswith("weight") else None

    options = {"example": arguments} if name == "RGCN" else {}
    _check_training(model, lambda m: m(*arguments).square().mean(), pick_of, **options)
    if name != "RGCN":
        rules, traced = gradcent.explain(model), gradcent.explain(model, example=arguments)
        assert [entry.layout for entry in rules.entries] == [entry.layout for entry in traced.entries]


def test_deformable_convolution_and_einmix() -> None:
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed")
    layers = pytest.importorskip("einops.layers.torch", reason="einops is not installed")

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset, self.deform = nn.Conv2d(4, 18, 3), ops.DeformConv2d(4, 6, 3)
            self.mix = layers.EinMix("b c h w -> b d h w", weight_shape="c d", c=6, d=5)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(self.deform(x, self.offset(x)))

    torch.manual_seed(0)
    x = torch.randn(2, 4, 7, 7).double()
    picks: dict[str, Pick] = {"offset.weight": rows, "deform.weight": rows, "mix.weight": columns}
    _check_training(
        Both().double(), lambda m: m(x).square().mean(), lambda name, _: picks.get(name), example=x
    )


def test_projections_of_open_clip() -> None:
    open_clip = pytest.importorskip("open_clip", reason="open_clip_torch is not installed")
    model = open_clip.model.CLIP(
        16,
        vision_cfg={"layers": 1, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 16},
        text_cfg={"layers": 1, "width": 32, "heads": 4, "vocab_size": 50, "context_length": 8},
    )
    plan = gradcent.explain(model, example=(torch.randn(2, 3, 16, 16), torch.randint(1, 50, (2, 8))))
    layouts = {entry.name: entry.layout for entry in plan.entries}
    assert layouts["visual.proj"] == gradcent.Layout.columns((32, 16))
    assert layouts["text_projection"] == gradcent.Layout.columns((32, 16))
    assert layouts["positional_embedding"] is None
    assert layouts["visual.class_embedding"] is None
    model = model.double().eval()
    images, texts = torch.randn(2, 3, 16, 16).double(), torch.randint(1, 50, (2, 8))
    bare = {"visual.proj": columns, "text_projection": columns}

    def pick_of(name: str, parameter: Tensor) -> Pick | None:
        if name in bare:
            return bare[name]
        return (
            rows if parameter.ndim > 1 and name.endswith("weight") and "token_embedding" not in name else None
        )

    def loss(clip: Any) -> Tensor:
        image, text, _ = clip(images, texts)
        return (image * text.flip(0)).sum()

    _check_training(model, loss, pick_of, example=(images, texts))


def test_a_weight_standardized_network() -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    model = timm.create_model(
        "nf_resnet26", num_classes=3, depths=(1, 1, 1, 1), channels=(16, 16, 16, 16)
    ).double()
    x = torch.randn(2, 3, 32, 32).double()
    picks = lambda name, p: rows if name.endswith(".weight") and p.ndim > 1 and p[0].numel() > 1 else None  # noqa: E731
    _check_training(model, lambda m: m(x).square().mean(), picks, example=x)
