"""The bench's results as text, as a list of targets reached or missed, and as a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SMALL = "2000x32x32"
FUSED, NAIVE = "torch fused", "naive GC + torch fused"


def heading(machine: dict[str, Any]) -> str:
    """Return what the numbers belong to, and the head of the table."""
    where = f"{machine['processor'] or 'unknown processor'}, {machine['threads']} threads, torch {machine['torch']}"
    columns = (
        f"{'list':<12}{'optimizer':<9}{'ours ms':>9}{'fused ms':>9}{'foreach':>9}{'loop':>9}{'naive+fused':>12}"
        f"{'ours/fused':>11}{'naive/ours':>11}{'GB/s':>7}{'of add_':>8}"
    )
    return f"{where}\n{machine['kernels']}; load average {machine['load_average']}\n{columns}"


def step(found: dict[str, Any]) -> str:
    """Return one line of the table."""
    ms = {name: each["median_ms"] for name, each in found["times"].items()}
    return (
        f"{found['list']:<12}{found['optimizer']:<9}{ms['gradcent']:>9.2f}{ms[FUSED]:>9.2f}{ms['torch foreach']:>9.2f}"
        f"{ms['torch loop']:>9.2f}{ms[NAIVE]:>12.2f}{found['ours_over_fused']:>11.3f}{found['naive_over_ours']:>11.2f}"
        f"{found['gigabytes_per_second']:>7.1f}{found['share_of_add']:>8.2f}"
    )


def passes(found: list[dict[str, Any]]) -> str:
    """Return the centralize pass beside one read and one write."""
    lines = [
        f"  {each['list']:<12}{each['times']['centralize']['median_ms']:>9.2f} ms, "
        f"{each['over_read_and_write']:.2f} of one read and write"
        for each in found
    ]
    return "\n".join(["centralize in place, for optimizers without a fused step:", *lines])


def training(found: dict[str, Any]) -> str:
    """Return the whole training step."""
    times = found["times"]
    low, high = found["interval"]
    return (
        f"ResNet-18 training step, batch {found['batch']}: {times['with']['median_ms']:.1f} ms with GC, "
        f"{times['without']['median_ms']:.1f} without (torch fused): {found['with_over_without']:.3f} "
        f"[{low:.3f}, {high:.3f}]"
    )


def growth(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return how cost grows."""
    lines = ["growth: parameters, tensors, optimizer, ours ms, torch fused ms, ratio"]
    for each in (*found["parameters"], *found["tensors"]):
        lines.append(
            f"  {each['parameters']:>12,}{each['tensors']:>8,}  {each['optimizer']:<6}"
            f"{each['times']['gradcent']:>10.2f}{each['times'][FUSED]:>10.2f}{each['ours_over_fused']:>8.3f}"
        )
    return "\n".join(lines)


def targets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every figure that was promised, with what was reached in this run."""
    rows: list[dict[str, Any]] = []

    def add(name: str, value: float, limit: float, *, least: bool = False) -> None:
        good = value >= limit if least else value <= limit
        rows.append(
            {"figure": name, "value": value, "limit": limit, "sign": "≥" if least else "≤", "reached": good}
        )

    for each in found["steps"]:
        what, small = f"{each['list']} {each['optimizer']}", each["list"] == SMALL
        if each["optimizer"] != "SGDW":  # torch has no fused form of it
            add(f"{what}: ours ÷ torch fused", each["ours_over_fused"], 0.30 if small else 0.95)
        add(
            f"{what}: naive GC + torch fused ÷ ours",
            each["naive_over_ours"],
            10 if small else 1.7,
            least=True,
        )
        if not small and each["optimizer"] in ("SGDM", "AdamW"):
            add(f"{what}: bandwidth ÷ that of add_", each["share_of_add"], 0.9, least=True)
        add(
            f"{what}: bytes of temporaries",
            each["temporary_bytes"]["gradcent"],
            640 * 1024 + 384 * each["tensors"],
        )
    for each in found["centralize"]:
        if each["list"] != SMALL:
            add(f"{each['list']}: centralize ÷ read and write", each["over_read_and_write"], 1.3)
    # Forward and backward are most of it, and vary by more than a step takes: the target is 1 within that noise.
    add("ResNet-18 training step, with ÷ without, lower end", found["training_step"]["interval"][0], 1.0)
    return rows


def verdict(rows: list[dict[str, Any]]) -> str:
    """Return which targets were reached and which were missed."""
    missed = [row for row in rows if not row["reached"]]
    lines = [f"targets reached: {len(rows) - len(missed)} of {len(rows)}"]
    lines += [
        f"  missed: {row['figure']} = {row['value']:.3g}, wanted {row['sign']} {row['limit']:g}"
        for row in missed
    ]
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> bool:
    """Draw ours and the others relative to torch's fused step without GC; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = found["steps"]
    names = list(dict.fromkeys(each["list"] for each in steps))
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(4 * len(names) + 1, 4), squeeze=False, layout="constrained"
    )
    shown = ("gradcent", FUSED, NAIVE, "torch foreach", "torch loop")
    for column, name in zip(axes[0], names, strict=True):
        own = [each for each in steps if each["list"] == name]
        for number, contender in enumerate(shown):
            heights = [
                each["times"][contender]["median_ms"] / each["times"][FUSED]["median_ms"] for each in own
            ]
            places = [position + 0.16 * number for position in range(len(own))]
            column.bar(places, heights, width=0.15, label="gradcent (with GC)" if number == 0 else contender)
        column.axhline(1, color="black", linewidth=0.8)
        column.set_xticks(
            [position + 0.32 for position in range(len(own))], [each["optimizer"] for each in own]
        )
        column.set_title(name)
    axes[0][0].set_ylabel("time of a step ÷ torch fused without GC")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(shown), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
