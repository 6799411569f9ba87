"""Every number that `gradcent compare` prints, computed again from the stored runs without the lab's analysis."""

import contextlib
import io
import itertools
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest
import torch
from compare_fixtures import toy
from scipy import optimize, stats

from gradcent_lab.cli import main
from gradcent_lab.data.batches import Feed
from gradcent_lab.data.random_streams import seed_everything

HERE, PAIRS, EPOCHS = "compare_fixtures", 6, 3
NBSP = "\N{NO-BREAK SPACE}"


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    return compare(tmp_path_factory.mktemp("printed"), PAIRS, EPOCHS)


def compare(folder, pairs, epochs):
    """Return the printed text (with plain spaces), and the stored runs of both arms by seed."""
    words = [f"{HERE}:toy", "--seeds", str(pairs), "--epochs", str(epochs), "--out", str(folder / "out")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "400")
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            assert main(["compare", *words]) == 0
    runs = {}
    for path in Path(folder, "out/runs/toy").iterdir():
        config = json.loads((path / "config.json").read_text())
        curves = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        runs[config["arm"]["name"], config["seed"]] = curves
    return stream.getvalue().replace(NBSP, " "), runs


def last(runs, arm):
    return [runs[arm, seed][-1]["eval_metric"] for seed in sorted({seed for _, seed in runs})]


def places_of(a, b):
    """Two digits of the smaller standard deviation."""
    return min(5, max(1, 1 - math.floor(math.log10(min(statistics.stdev(a), statistics.stdev(b))))))


def signed(value, places):
    text = f"{value:+.{places}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{places}f}") == 0 else text


def p_text(p):
    return "< 0.001" if p < 0.001 else f"= {p:.3f}" if p < 0.1 else f"= {p:.2f}"


def test_pairs_and_means(answer):
    text, runs = answer
    a, b = last(runs, "off"), last(runs, "on")
    places = places_of(a, b)
    lines = [line.split() for line in text.splitlines()]
    for seed, (x, y) in enumerate(zip(a, b, strict=True)):
        assert [str(seed), f"{x:.{places}f}", f"{y:.{places}f}", signed(y - x, places)] in lines
    means = [f"{statistics.fmean(v):.{places}f} ± {statistics.stdev(v):.{places}f}".split() for v in (a, b)]
    difference = signed(statistics.fmean(b) - statistics.fmean(a), places)
    assert ["mean", *means[0], *means[1], difference] in lines


def test_interval_tests_and_counts(answer):
    text, runs = answer
    a, b = last(runs, "off"), last(runs, "on")
    places = places_of(a, b)
    differences = [y - x for x, y in zip(a, b, strict=True)]
    test = stats.ttest_1samp(differences, 0)
    low, high = test.confidence_interval(0.95)
    # sign flips: the share of all sign patterns whose mean is at least as far from 0
    seen = abs(sum(differences))
    patterns = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=PAIRS)
    ]
    flips = sum(value >= seen - 1e-9 for value in patterns) / len(patterns)
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    expected = (
        f"accuracy {signed(statistics.fmean(differences), places)} points with GC, better in {better}, worse in "
        f"{worse} of {PAIRS} pairs (95 % interval [{signed(low, places)}, {signed(high, places)}], {PAIRS} pairs, "
        f"t-test p {p_text(test.pvalue)}, sign-flip p {p_text(flips)})."
    )
    assert expected in text
    shown = ((low > 0 or high < 0) and test.pvalue < 0.05) or flips < 0.01
    bound = max(abs(low), abs(high))
    verdict = ("helps" if statistics.fmean(differences) > 0 else "hurts") if shown else "inconclusive"
    if not shown and bound <= 1:
        verdict = "no difference larger than"
    assert f"verdict: {verdict}" in text


def power(ratio, n):
    """Of the two-sided t-test at 5 %, by the noncentral F distribution of its square."""
    critical = stats.t.isf(0.025, n - 1) ** 2
    return stats.ncf.sf(critical, 1, n - 1, n * ratio**2)


def test_the_advice_of_too_few_pairs(tmp_path, capsys):
    """A script with made-up results, whose three differences show nothing."""
    differences = [2.5, -1.5, 2.0]
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nseed = int(sys.argv[1])\n"
        f"print(json.dumps({{'accuracy, %': 50 + seed + {differences}[seed] * (len(sys.argv) > 2)}}))\n"
    )
    command = f"{sys.executable} {script} {{seed}} {{gc}}"
    words = ["--command", command, "--metric", "accuracy, %", "--seeds", "3", "--out", str(tmp_path / "out")]
    assert main(["compare", *words]) == 0
    text = " ".join(capsys.readouterr().out.replace(NBSP, " ").split())
    scatter = statistics.stdev(differences)
    assert "verdict: inconclusive" in text
    detectable = optimize.brentq(lambda r: power(r, 3) - 0.8, 1e-3, 50) * scatter
    quoted = float(re.search(r"detect a difference of ([\d.]+) points or more", text)[1])
    assert detectable <= quoted <= 1.1 * detectable + 0.1  # rounded up to two digits
    needed = next(n for n in range(2, 10_000) if power(1 / scatter, n) >= 0.8)
    assert f"To detect 1 point, add about {max(1, needed - 3)} pairs." in text


def test_the_default_target_and_the_speed(answer):
    text, runs = answer
    a, b = last(runs, "off"), last(runs, "on")
    target, places = statistics.median(a), places_of(a, b)

    def time(curve):
        for number, line in enumerate(curve, start=1):
            if line["eval_metric"] >= target:
                if number == 1:
                    return 1.0
                before = curve[number - 2]["eval_metric"]
                return number - 1 + (target - before) / (line["eval_metric"] - before)
        return None

    times = {arm: [time(runs[arm, seed]) for seed in range(PAIRS)] for arm in ("off", "on")}
    reached = {arm: sum(t is not None for t in values) for arm, values in times.items()}
    assert (
        f"Target accuracy {target:.{places}f} % (the median last value without GC): reached by {reached['off']} of "
        f"{PAIRS} runs without GC and {reached['on']} of {PAIRS} with GC." in text
    )
    logs = [math.log((y or EPOCHS) / (x or EPOCHS)) for x, y in zip(times["off"], times["on"], strict=True)]
    half = stats.t.isf(0.025, PAIRS - 1) * stats.sem(logs)
    mean = statistics.fmean(logs)
    ratio = f"{math.exp(mean):.2f} times [{math.exp(mean - half):.2f}, {math.exp(mean + half):.2f}]"
    assert f"With GC a run needs {ratio} the epochs and steps" in text
    censored = 2 * PAIRS - reached["off"] - reached["on"]
    if censored > 1:
        assert f"{censored} runs that never reach the target count with all {EPOCHS} epochs" in text


def test_why_in_numbers(answer):
    """Plain torch: the energy along 1 in the gradients of the first steps, and the drift of the weight sums."""
    text, _ = answer
    experiment = toy()
    seed_everything(0, "weights")
    model = experiment.model()
    optimizer = experiment.optimizer(model.parameters())
    start = [model[index].weight.detach().clone().double() for index in (0, 2)]
    energy, removed, steps = [0.0, 0.0], [0.0, 0.0], 0
    for batch in Feed(experiment.train_data, 32, seed=0, train=True, drop_last=True).epoch(0):
        experiment.loss(model(batch.inputs), batch.targets).backward()
        for slot, index in enumerate((0, 2)):
            gradient = model[index].weight.grad.double()
            energy[slot] += float((gradient**2).sum())
            removed[slot] += float((gradient.mean(1) ** 2).sum() * gradient.shape[1])
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    whole, (first, second) = sum(removed) / sum(energy), (r / e for r, e in zip(removed, energy, strict=True))
    assert (
        f"In the first {steps} steps without GC, centralizing would remove {100 * whole:.0f} % of the gradient's "
        f"energy in the 2 tensors that GC acts on (90 % of all weights): {100 * whole:.0f} % in linear layers; "
        f"by role: {100 * second:.0f} % in hidden layers, {100 * first:.0f} % in the input layer." in text
    )
    ends = [model[index].weight.detach().double() for index in (0, 2)]
    drift = max(float((e - s).sum(1).abs().max()) for s, e in zip(start, ends, strict=True))
    quoted = float(re.search(r"drifts by up to ([\d.e+-]+) in these steps without GC", text)[1])
    assert quoted == pytest.approx(drift, rel=0.06)
    assert torch.isfinite(ends[0]).all()
