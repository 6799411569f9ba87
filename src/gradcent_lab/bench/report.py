"""Show the results of the benchmark: text, targets reached and missed, chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradcent_lab.store.atomic_files import write_atomically

SMALL = "2000x32x32"
FUSED, NAIVE = "torch fused", "naive GC + torch fused"


def heading(machine: dict[str, Any]) -> str:
    """Return the machine and the header of the table."""
    where = f"{machine['processor'] or 'unknown processor'}, {machine['threads']} threads, torch {machine['torch']}"
    columns = (
        f"{'list':<12}{'optimizer':<9}{'ours ms':>9}{'fused ms':>9}{'foreach':>9}{'loop':>9}{'naive+fused':>12}"
        f"{'ours/fused':>11}{'naive/ours':>11}{'GB/s':>7}{'of add_':>8}"
    )
    return f"{where}\n{machine['kernels']}; load average {machine['load_average']}\n{columns}"


def step(result: dict[str, Any]) -> str:
    """Return one line of the table."""
    ms = {name: entry["median_ms"] for name, entry in result["times"].items()}
    times = [ms["gradcent"], ms[FUSED], ms["torch foreach"], ms["torch loop"]]
    ratios = f"{result['ours_over_fused']:>11.3f}{result['naive_over_ours']:>11.2f}"
    return (
        f"{result['list']:<12}{result['optimizer']:<9}{''.join(f'{time:>9.2f}' for time in times)}"
        f"{ms[NAIVE]:>12.2f}{ratios}{result['gigabytes_per_second']:>7.1f}{result['share_of_add']:>8.2f}"
    )


def passes(results: list[dict[str, Any]]) -> str:
    """Return the time of centralizing in place, relative to one read and one write."""
    lines = [
        f"  {result['list']:<12}{result['times']['centralize']['median_ms']:>9.2f} ms, "
        f"{result['over_read_and_write']:.2f} of one read and write"
        for result in results
    ]
    return "\n".join(["centralize in place, for optimizers without a fused step:", *lines])


def training(result: dict[str, Any]) -> str:
    """Return the time of a whole training step."""
    times = result["times"]
    low, high = result["interval"]
    return (
        f"ResNet-18 training step, batch {result['batch']}: {times['with']['median_ms']:.1f} ms with GC, "
        f"{times['without']['median_ms']:.1f} without (torch fused): {result['with_over_without']:.3f} "
        f"[{low:.3f}, {high:.3f}]"
    )


def growth(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return how the cost grows with the number of parameters and of tensors."""
    lines = ["growth: parameters, tensors, optimizer, ours ms, torch fused ms, ratio"]
    for result in (*results["parameters"], *results["tensors"]):
        lines.append(
            f"  {result['parameters']:>12,}{result['tensors']:>8,}  {result['optimizer']:<6}"
            f"{result['times']['gradcent']:>10.2f}{result['times'][FUSED]:>10.2f}{result['ours_over_fused']:>8.3f}"
        )
    return "\n".join(lines)


def targets(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every target with the value of this run."""
    rows: list[dict[str, Any]] = []

    def add(name: str, value: float, limit: float, *, least: bool = False) -> None:
        good = value >= limit if least else value <= limit
        rows.append(
            {"figure": name, "value": value, "limit": limit, "sign": "≥" if least else "≤", "reached": good}
        )

    for result in document["steps"]:
        what, small = f"{result['list']} {result['optimizer']}", result["list"] == SMALL
        if result["optimizer"] != "SGDW":  # torch has no fused form of it
            add(f"{what}: ours ÷ torch fused", result["ours_over_fused"], 0.30 if small else 0.95)
        add(
            f"{what}: naive GC + torch fused ÷ ours",
            result["naive_over_ours"],
            10 if small else 1.7,
            least=True,
        )
        if not small and result["optimizer"] in ("SGDM", "AdamW"):
            add(f"{what}: bandwidth ÷ that of add_", result["share_of_add"], 0.9, least=True)
        add(
            f"{what}: bytes of temporaries",
            result["temporary_bytes"]["gradcent"],
            640 * 1024 + 384 * result["tensors"],
        )
    for result in document["centralize"]:
        if result["list"] != SMALL:
            add(f"{result['list']}: centralize ÷ read and write", result["over_read_and_write"], 1.3)
    # Forward and backward vary by more than an optimizer step takes: the lower end of the interval is judged.
    add("ResNet-18 training step, with ÷ without, lower end", document["training_step"]["interval"][0], 1.0)
    return rows


def verdict(rows: list[dict[str, Any]]) -> str:
    """Return the number of targets reached and a line for each one missed."""
    missed = [row for row in rows if not row["reached"]]
    lines = [f"targets reached: {len(rows) - len(missed)} of {len(rows)}"]
    lines += [
        f"  missed: {row['figure']} = {row['value']:.3g}, wanted {row['sign']} {row['limit']:g}"
        for row in missed
    ]
    return "\n".join(lines)


def draw(document: dict[str, Any], path: Path) -> bool:
    """Draw ours and the others relative to torch's fused step without GC; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = document["steps"]
    names = list(dict.fromkeys(result["list"] for result in steps))
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(4 * len(names) + 1, 4.4), squeeze=False, sharey=True, layout="constrained"
    )
    shown = ("gradcent", FUSED, NAIVE, "torch foreach", "torch loop")
    for column, name in zip(axes[0], names, strict=True):
        rows = [result for result in steps if result["list"] == name]
        for number, contender in enumerate(shown):
            heights = [
                result["times"][contender]["median_ms"] / result["times"][FUSED]["median_ms"]
                for result in rows
            ]
            places = [position + 0.16 * number for position in range(len(rows))]
            column.bar(
                places,
                [height - 1 for height in heights],
                width=0.15,
                bottom=1,
                label="gradcent (with GC)" if number == 0 else contender,
            )
        column.axhline(1, color="black", linewidth=0.8)
        column.set_yscale("log", base=2)
        column.yaxis.set_major_formatter("{x:g}")
        column.set_xticks(
            [position + 0.32 for position in range(len(rows))], [result["optimizer"] for result in rows]
        )
        column.set_title(name)
    axes[0][0].set_ylabel("time of a step ÷ torch fused without GC")
    machine = document["machine"]
    where = (
        machine["processor"],
        f"{machine['threads']} threads",
        f"torch {machine['torch']}",
        machine.get("date"),
    )
    figure.supxlabel(", ".join(filter(None, where)), fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(shown), fontsize=8, frameon=False)
    write_atomically(path, lambda stream: figure.savefig(stream, format="png", dpi=110))
    pyplot.close(figure)
    return True
