"""Compare class rules with traces over published architectures, on meta tensors: no weights, no downloads.

    python tools/architectures.py                 # all of torchvision, timm and transformers that build here
    python tools/architectures.py timm vit swin   # one library, architectures whose names contain a word

Writes one line per architecture to results/architectures.jsonl, which `docs/layouts.md` shows as a table. The test of
agreement (tests/plan/test_architectures.py) runs the list `QUICK`.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

RESULTS = Path(__file__).parent.parent / "results" / "architectures.jsonl"
LIBRARIES = ("torchvision", "timm", "transformers")

# Small values for the sizes that configurations of transformers share.
SMALL: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), 64),
    **dict.fromkeys(("hidden_dim", "intermediate_size", "ffn_dim", "d_ff", "n_inner"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "patch_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group"), 1),
    **{"vocab_size": 128, "image_size": 32, "pad_token_id": 0},
}

QUICK = """
torchvision: alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
  mobilenet_v2 mobilenet_v3_small mvit_v2_s r3d_18 regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
  squeezenet1_0 swin_t swin_v2_t vgg11_bn vit_b_32 deeplabv3_resnet50
timm: beit_base_patch16_224 botnet26t_256 cait_xxs24_224 coat_lite_tiny convit_tiny convmixer_768_32 convnextv2_atto
  davit_tiny edgenext_xx_small efficientformer_l1 efficientnet_cc_b0_4e eva02_tiny_patch14_224 fastvit_t8 focalnet_tiny_srf
  gcvit_xxtiny ghostnet_050 gmlp_s16_224 halonet26t hiera_tiny_224 lambda_resnet26t levit_128s mixer_s16_224 mobilevit_xxs
  nf_regnet_b0 pvt_v2_b0 repvgg_a0 resmlp_12_224 resnetv2_50x1_bit samvit_base_patch16_224 skresnet18 tiny_vit_5m_224
  twins_pcpvt_small vit_tiny_patch16_224 xcit_nano_12_p8_224
transformers: albert bert deepseek_v3 distilbert electra fnet gpt2 gpt_neox gpt_oss llama llama4_text mamba
  mixtral mpnet olmoe qwen3 qwen3_moe switch_transformers t5 vit
"""


def quick() -> list[tuple[str, str]]:
    """Return (library, name) of the architectures that the test of agreement runs."""
    pairs = []
    for line in QUICK.replace("\n  ", " ").strip().splitlines():
        library, _, names = line.partition(":")
        pairs += [(library, name) for name in names.split()]
    return pairs


def build(library: str, name: str) -> tuple[nn.Module, Any]:
    """Return a model on the meta device, and an example for it."""
    return {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library](name)


def _on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.device("meta"):
            return make()
    except (NotImplementedError, RuntimeError):  # reads values while it is built
        return make().to("meta")


def _torchvision(name: str) -> tuple[nn.Module, Any]:
    import torchvision

    backbone = "weights_backbone" in inspect.signature(torchvision.models.get_model_builder(name)).parameters
    options: dict[str, Any] = {"weights": None} | ({"weights_backbone": None} if backbone else {})
    model = _on_meta(lambda: torchvision.models.get_model(name, **options))
    image = (3, 299, 299) if "inception" in name else (3, 224, 224)
    if type(model).__module__.startswith("torchvision.models.video"):
        image = (3, 16, 224, 224)
    if type(model).__module__.startswith("torchvision.models.optical_flow"):
        return model, (torch.empty(1, 3, 128, 128), torch.empty(1, 3, 128, 128))
    if type(model).__module__.startswith("torchvision.models.detection"):
        raise ValueError("detection models read values in their forward pass")
    return model, torch.empty(2, *image)


def _timm(name: str) -> tuple[nn.Module, Any]:
    import timm

    model = _on_meta(lambda: timm.create_model(name, pretrained=False))
    return model, torch.empty(2, *model.default_cfg.get("input_size", (3, 224, 224)))


def _transformers(name: str) -> tuple[nn.Module, Any]:
    import transformers

    kind = transformers.CONFIG_MAPPING[name]
    default = kind()
    sizes = {key: value for key, value in SMALL.items() if type(getattr(default, key, None)) is int}
    if "qk_rope_head_dim" in sizes:
        sizes.pop("head_dim", None)  # computed from the other two
    try:
        config = kind(**sizes)
        model = _on_meta(lambda: transformers.AutoModel.from_config(config))
    except Exception:  # the sizes do not fit together: Swin's heads per stage, for example
        config = default
        model = _on_meta(lambda: transformers.AutoModel.from_config(config))
    arguments = inspect.signature(model.forward).parameters
    tokens = torch.ones(2, 12, dtype=torch.long)
    if "input_ids" in arguments:
        decoder = {"decoder_input_ids": tokens} if "decoder_input_ids" in arguments else {}
        return model, {"input_ids": tokens, **decoder}
    if "pixel_values" in arguments:
        size = getattr(config, "image_size", 32)
        height, width = (size, size) if isinstance(size, int) else size
        return model, {"pixel_values": torch.empty(2, getattr(config, "num_channels", 3), height, width)}
    if "input_values" in arguments:
        return model, {"input_values": torch.empty(2, 4000)}
    raise ValueError(f"no example for a forward pass with {', '.join(list(arguments)[:4])}")


def compare(model: nn.Module, example: Any) -> dict[str, Any]:
    """Return what the rules and the trace say of a model, as plain numbers."""
    import gradcent
    from gradcent.plan.provenance import same_vectors
    from gradcent.plan.traced import Finding
    from gradcent.plan.tracing import trace

    start = time.perf_counter()
    traced = trace(model, example)
    seconds = time.perf_counter() - start
    rules = gradcent.explain(model)
    by_name = {entry.name: traced[parameter] for parameter, entry in rules.named()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="gradcent: the example does not reach")
        both = gradcent.Plan.of(model, traced=by_name)
    compared, disagreements, unreached = 0, [], 0
    for parameter, entry in rules.named():
        if entry.layout is None:
            continue
        finding = traced[parameter]
        if finding.layout is not None:
            compared += 1
            if not same_vectors(entry.shape, entry.layout, finding.layout):
                disagreements.append(f"{entry.name}: rule {entry.layout}, trace {finding.layout}")
        elif finding.finding is Finding.UNREACHED:
            unreached += 1
        elif finding.finding is not Finding.CONSTANTS:
            disagreements.append(f"{entry.name}: rule {entry.layout}, trace {finding.text}")
    share = lambda plan: plan.totals()["centralized_parameters"] / max(plan.totals()["parameters"], 1)  # noqa: E731
    return {
        "weights": compared,
        "unreached": unreached,
        "disagreements": disagreements,
        "only_traced": sum(entry.source == "trace" and entry.layout is not None for entry in both.entries),
        "share_rules": round(share(rules), 4),
        "share_traced": round(share(both), 4),
        "seconds": round(seconds, 2),
    }


def names_of(library: str) -> list[str]:
    """Return the names of all architectures of a library."""
    if library == "torchvision":
        import torchvision

        return sorted(torchvision.models.list_models())
    if library == "timm":
        import timm

        return sorted(timm.list_models())
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def representatives(library: str) -> list[str]:
    """Return all architectures of a library, but of timm the first two of each family of names and the quick list."""
    names = names_of(library)
    if library != "timm":
        return names
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.split("_")[0].rstrip("0123456789"), []).append(name)
    chosen = {name for members in families.values() for name in members[:2]}
    chosen |= {name for other, name in quick() if other == library}
    return [name for name in names if name in chosen]


def run(pairs: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Compare architectures one by one; those that do not build or run get the reason."""
    for library, name in pairs:
        line: dict[str, Any] = {"library": library, "name": name}
        try:
            model, example = build(library, name)
        except Exception as error:
            reason = re.sub(r"'?/\S*", "…", str(error).splitlines()[0])  # no paths of this machine
            yield line | {"not_built": f"{type(error).__name__}: {reason[:120]}"}
            continue
        try:
            yield line | compare(model, example)
        except ValueError as error:
            yield line | {
                "not_run": f"{type(error.__cause__ or error).__name__}: {str(error.__cause__ or error)[:120]}"
            }


def main(arguments: list[str]) -> int:
    """Run the architectures that the command line names; the exit status says whether all agree."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    libraries = [argument for argument in arguments if argument in LIBRARIES] or LIBRARIES
    words = [argument for argument in arguments if argument not in LIBRARIES]
    pairs = [(library, name) for library in libraries for name in representatives(library)]
    pairs = [pair for pair in pairs if not words or any(word in pair[1] for word in words)]
    lines = []
    for line in run(pairs):
        lines.append(line)
        print(json.dumps(line), flush=True)
    if not words and tuple(libraries) == LIBRARIES:
        RESULTS.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    disagreeing = [line["name"] for line in lines if line.get("disagreements")]
    print(f"{len(lines)} architectures, disagreements in {disagreeing or 'none'}", file=sys.stderr)
    return 1 if disagreeing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
