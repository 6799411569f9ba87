"""Build published architectures of torchvision, timm and transformers with examples for them: no weights, no downloads.

:func:`candidates` yields a model and an example in the order in which they are worth a try: a small model on meta
tensors, the same with other examples, a small model on the CPU (for forward passes that read values), the default
sizes on meta tensors and, if they are small enough, on the CPU.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Candidate = tuple[nn.Module, Any]
CPU_LIMIT = 60_000_000  # parameters of a model that may be built with values
BATCH, TOKENS = 2, 12

# Small values for the sizes that configurations of transformers share.
SMALL: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), 64),
    **dict.fromkeys(("hidden_dim", "intermediate_size", "ffn_dim", "d_ff", "n_inner"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers", "depth"), 2),
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
# The sizes that decide how large a model is and that fit together in nearly every configuration.
DEPTH_ONLY = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
)


def build(library: str, name: str) -> Candidate:
    """Return a model on the meta device, and an example for it."""
    return next(candidates(library, name))


def candidates(library: str, name: str) -> Iterator[Candidate]:
    """Yield models with examples until the caller has one that runs; raise if not even one can be built."""
    return {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library](name)


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


def _on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.device("meta"):
            return make()
    except (NotImplementedError, RuntimeError):  # reads values while it is built
        return make().to("meta")


def _is_small(model: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) <= CPU_LIMIT


def _torchvision(name: str) -> Iterator[Candidate]:
    import torchvision

    backbone = "weights_backbone" in inspect.signature(torchvision.models.get_model_builder(name)).parameters
    options: dict[str, Any] = {"weights": None} | ({"weights_backbone": None} if backbone else {})
    model = _on_meta(lambda: torchvision.models.get_model(name, **options))
    module = type(model).__module__
    if module.startswith("torchvision.models.detection"):  # its forward pass reads values
        yield torchvision.models.get_model(name, **options).eval(), ([torch.rand(3, 128, 128)],)
    elif module.startswith("torchvision.models.optical_flow"):
        yield model, (torch.empty(1, 3, 128, 128), torch.empty(1, 3, 128, 128))
    elif module.startswith("torchvision.models.video"):
        yield model, torch.empty(BATCH, 3, 16, 224, 224)
    else:
        size = 299 if "inception" in name else 224
        yield model, torch.empty(BATCH, 3, size, size)


def _timm(name: str) -> Iterator[Candidate]:
    import timm

    model = _on_meta(lambda: timm.create_model(name, pretrained=False))
    size = model.default_cfg.get("input_size", (3, 224, 224))
    yield model, torch.empty(BATCH, *size)
    if _is_small(model):
        yield timm.create_model(name, pretrained=False), torch.rand(BATCH, *size)


def _transformers(name: str) -> Iterator[Candidate]:
    import transformers

    kind = transformers.CONFIG_MAPPING[name]
    attempts: list[tuple[Callable[[type], Any], bool]] = [
        (lambda config: _config(config, SMALL), False),
        (lambda config: _config(config, SMALL), True),
        (lambda config: _config(config, {size: SMALL[size] for size in DEPTH_ONLY}), False),
        (lambda config: _config(config, {size: SMALL[size] for size in DEPTH_ONLY}), True),
        (lambda config: config(), False),
        (lambda config: config(), True),
    ]
    errors: list[Exception] = []
    built = False
    for make_config, with_values in attempts:
        try:
            config = make_config(kind)
            model = _on_meta(lambda: _model(config))  # noqa: B023  # called at once
            if with_values:
                if not _is_small(model):
                    continue
                model = _model(config).float().eval()
        except Exception as error:  # the sizes do not fit together: Swin's heads per stage, for example
            errors.append(error)
            continue
        for example in _examples(model, config, with_values):
            built = True
            yield model, example
    if not built:
        raise errors[0] if errors else ValueError(_no_example(model))


def _config(kind: type, sizes: dict[str, int]) -> Any:
    """Return a configuration with the given sizes where it has them, also in the configurations inside it."""
    default: Any = kind()
    chosen: dict[str, Any] = {
        key: value for key, value in sizes.items() if type(getattr(default, key, None)) is int
    }
    if "qk_rope_head_dim" in chosen:
        chosen.pop("head_dim", None)  # computed from the other two
    for key, inner in getattr(kind, "sub_configs", {}).items():
        if getattr(default, key, None) is not None:
            chosen[key] = _config(type(getattr(default, key)), sizes) if inner else None
    config = kind(**chosen)
    if getattr(config, "use_cache", False):
        config.use_cache = False
    return config


def _model(config: Any) -> nn.Module:
    import transformers

    try:
        return transformers.AutoModel.from_config(config)  # type: ignore[no-any-return]
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
    package = importlib.import_module(type(config).__module__.rpartition(".")[0])
    files = [
        file.name for file in pkgutil.iter_modules(package.__path__) if file.name.startswith("modeling_")
    ]
    modules = [importlib.import_module(f"{package.__name__}.{file}") for file in files]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, transformers.PreTrainedModel)
        and value.__module__ == module.__name__
        and value.config_class is type(config)
        and "forward" in value.__dict__
    ]
    if not classes:
        raise ValueError("no model class takes this configuration: it describes a part of another model")
    chosen: Any = min(classes, key=lambda value: not value.__name__.endswith("Model"))
    return chosen(config)  # type: ignore[no-any-return]


def _no_example(model: nn.Module) -> str:
    arguments = list(inspect.signature(model.forward).parameters)
    return f"no example for a forward pass with {', '.join(arguments[:4])}"


def _examples(model: nn.Module, config: Any, with_values: bool) -> Iterator[dict[str, Any]]:
    """Yield keyword arguments of the forward pass: each known input alone, then two of them together."""
    parameters = inspect.signature(model.forward).parameters
    required = {
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    groups = [group for group in _inputs(parameters, config, with_values) if group]
    pairs = [
        {**first, **second}
        for first, second in itertools.combinations(groups, 2)
        if not first.keys() & second.keys()
    ]
    for example in [*groups, *pairs]:
        if required <= example.keys():
            yield example


def _inputs(parameters: Any, config: Any, with_values: bool) -> Iterator[dict[str, Any]]:
    """Yield the inputs that the forward pass names, in the shapes that are usual for them."""

    def size(default: int, *names: str) -> int:
        return _size(config, default, *names)

    def floats(*shape: int) -> Tensor:
        return torch.rand(shape) if with_values else torch.empty(shape)

    tokens = torch.ones(BATCH, TOKENS, dtype=torch.long)
    hidden = size(64, "hidden_size", "d_model", "dim", "embed_dim", "n_embd")
    channels = size(3, "num_channels", "in_channels", "in_chans")
    side, patch = size(32, "image_size"), size(8, "patch_size")
    mels = size(80, "num_mel_bins", "feature_size", "n_mels", "feature_projection_input_dim", "input_dim")
    if "input_ids" in parameters:
        decoder = {"decoder_input_ids": tokens} if "decoder_input_ids" in parameters else {}
        yield {"input_ids": tokens, **decoder}
        if "bbox" in parameters:
            yield {"input_ids": tokens, "bbox": torch.zeros(BATCH, TOKENS, 4, dtype=torch.long)}
    elif "decoder_input_ids" in parameters:
        yield {"decoder_input_ids": tokens}
    if "pixel_values" in parameters:
        for height in dict.fromkeys((side, 64, 224)):
            yield {"pixel_values": floats(BATCH, channels, height, height)}
        frames = size(8, "num_frames")
        yield {"pixel_values": floats(BATCH, frames, channels, side, side)}
        yield {"pixel_values": floats(BATCH, 2, channels, 64, 64)}
    if "pixel_values_videos" in parameters:
        yield {"pixel_values_videos": floats(BATCH, size(8, "num_frames"), channels, side, side)}
    grid = next((name for name in ("grid_thw", "image_grid_thw") if name in parameters), None)
    patches = next((name for name in ("hidden_states", "pixel_values") if name in parameters), None)
    if grid is not None and patches is not None:
        width = channels * size(2, "temporal_patch_size") * patch * patch
        yield {patches: floats(16, width), grid: torch.tensor([[1, 4, 4]])}
    if "input_values" in parameters:
        yield {"input_values": floats(BATCH, 4000)}
        yield {"input_values": floats(BATCH, 1, 3840)}
        yield {"input_values": floats(BATCH, size(1024, "max_length"), size(128, "num_mel_bins"))}
    if "input_features" in parameters:
        frames = 2 * size(32, "max_source_positions")
        decoder = {"decoder_input_ids": tokens} if "decoder_input_ids" in parameters else {}
        yield {"input_features": floats(BATCH, mels, frames), **decoder}
        yield {"input_features": floats(BATCH, 64, mels), **decoder}
    for name in ("inputs_embeds", "query_embeds", "hidden_states", "latents", "encoder_hidden_states"):
        if name in parameters:
            yield {name: floats(BATCH, TOKENS, hidden)}
    if "past_values" in parameters:
        yield {
            "past_values": floats(
                BATCH, size(32, "context_length"), size(1, "num_input_channels", "input_size")
            )
        }


def _size(config: Any, default: int, *names: str) -> int:
    """Return the first of these sizes that a configuration, or one inside it, has."""
    inner = [getattr(config, key, None) for key in getattr(config, "sub_configs", {})]
    for source in (config, *inner):
        for name in names:
            value = getattr(source, name, None)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default
