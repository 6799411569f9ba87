"""Compare class rules with traces over published architectures, on meta tensors: no weights, no downloads.

    python tools/architectures.py                 # all of torchvision, timm and transformers that build here
    python tools/architectures.py timm vit swin   # one library, architectures whose names contain a word

Writes one line per architecture to results/architectures.jsonl, which `docs/layouts.md` shows as a table. The test of
agreement (tests/plan/test_architectures.py) runs the list `QUICK`. An interrupted run continues where it was.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from architecture_models import build, candidates, names_of
from torch import nn

__all__ = ["build", "compare", "quick"]
RESULTS = Path(__file__).parent.parent / "results" / "architectures.jsonl"
PARTIAL = RESULTS.with_suffix(".partial")  # the lines of a run that is not finished
LIMIT = 60  # seconds of CPU time for one architecture
LIBRARIES = ("torchvision", "timm", "transformers")

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


def run_one(library: str, name: str) -> dict[str, Any]:
    """Compare one architecture; if none of its candidates builds or runs, the line has the first one's reason."""
    line: dict[str, Any] = {"library": library, "name": name}
    failure: dict[str, str] = {}
    try:
        with _time_limit(LIMIT):
            for model, example in candidates(library, name):
                try:
                    return line | compare(model, example)
                except ValueError as error:
                    failure = failure or {"not_run": _reason(error.__cause__ or error)}
    except Exception as error:
        failure = failure or {"not_built": _reason(error)}
    return line | (failure or {"not_built": "no example for its forward pass"})


def _reason(error: BaseException) -> str:
    first = (str(error).strip() or "no message").splitlines()[0]
    without_paths = re.sub(r"'?/[^ ]*", "…", first)  # paths of this machine
    return f"{type(error).__name__}: {without_paths[:120]}"


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s of CPU time")

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def main(arguments: list[str]) -> int:
    """Run the architectures that the command line names; the exit status says whether all agree."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    libraries = [argument for argument in arguments if argument in LIBRARIES] or LIBRARIES
    words = [argument for argument in arguments if argument not in LIBRARIES]
    pairs = [(library, name) for library in libraries for name in representatives(library)]
    pairs = [pair for pair in pairs if not words or any(word in pair[1] for word in words)]
    whole = not words and tuple(libraries) == LIBRARIES
    lines = _read(PARTIAL) if whole else {}  # what an interrupted run has done
    for pair in pairs:
        if pair in lines:
            continue
        lines[pair] = run_one(*pair)
        print(json.dumps(lines[pair]), flush=True)
        if whole:
            with PARTIAL.open("a") as file:
                file.write(f"{json.dumps(lines[pair])}\n")
    if whole:
        RESULTS.write_text("".join(f"{json.dumps(lines[pair])}\n" for pair in pairs))
        PARTIAL.unlink(missing_ok=True)
    disagreeing = [name for (_, name), line in lines.items() if line.get("disagreements")]
    print(f"{len(lines)} architectures, disagreements in {disagreeing or 'none'}", file=sys.stderr)
    return 1 if disagreeing else 0


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["library"], line["name"]): line for line in lines}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
