"""Pairing: what counts as a pair, what is left out, what is refused."""

import math
from dataclasses import replace

import pytest
from synthetic_records import record, study

from gradcent_lab.analysis.findings import Rules, findings
from gradcent_lab.errors import UserError
from gradcent_lab.report.wording import advise, conclude


def test_pairs_are_matched_by_seed_not_by_order():
    runs = [record(arm="off", seed=s, last=10.0 + s) for s in range(5)]
    runs += [record(arm="on", seed=s, last=11.0 + s) for s in reversed(range(5))]
    (found,) = findings(runs, epoch="last")
    assert found.seeds == (0, 1, 2, 3, 4)
    assert found.comparison.difference == pytest.approx(1.0)
    assert found.comparison.low == pytest.approx(1.0)


def test_a_seed_with_one_arm_is_left_out_and_named():
    runs = [*study(n=5), record(arm="off", seed=9)]
    (found,) = findings(runs)
    assert found.comparison.n == 5
    assert found.unpaired == (9,)


def test_different_initial_weights_are_no_pair():
    runs = [record(arm="off", weights="a"), record(arm="on", weights="b")]
    with pytest.raises(UserError, match="started from different weights, so they are no pair"):
        findings(runs)


def test_runs_with_other_settings_are_never_averaged():
    runs = [*study(epochs=12, n=3), *study(epochs=6, n=4)]
    found = findings(runs, table=1, with_claims=False)
    assert sorted(f.comparison.n for f in found) == [3, 4]
    assert {f.cell for f in found} == {"R18 (epochs 12)", "R18 (epochs 6)"}
    assert all(f.claim.cell == "R18" for f in found)


def test_claims_of_the_table_that_were_not_run_are_listed_in_the_papers_order():
    found = findings(study(), table=1, epoch="best")
    assert [f.cell for f in found] == ["R18", "R101", "X29", "V11", "D121"]
    assert [f.verdict for f in found] == ["same direction"] + ["not run at this scale"] * 4
    assert found[0].epoch == "best"


def test_own_studies_are_judged_by_the_last_epoch_and_have_no_claims():
    (found,) = findings(study(study="mine", cell="mine", scale="own"))
    assert found.epoch == "last"
    assert found.claim is None
    assert found.at("best").difference != found.comparison.difference


def test_paper_scale_may_say_reproduced():
    assert (
        findings(study(gain=1.95, scale="paper", n=8, base=76.6), table=1, epoch="best")[0].verdict
        == "reproduced"
    )
    assert (
        findings(study(gain=1.95, scale="paper", n=8), table=1, epoch="best")[0].verdict == "same direction"
    )  # at 50 %, not at 77 %
    assert findings(study(gain=-1.95, scale="paper", n=8), table=1, epoch="best")[0].verdict == "opposite"


def test_error_rates_improve_downwards():
    runs = study(study="table5", cell="R50GN", metric="top-1 error", higher=False, gain=-1.2)
    assert (
        next(f for f in findings(runs, table=5, epoch="best") if f.cell == "R50GN").verdict
        == "same direction"
    )


def test_variants_of_gc_with_one_name_are_never_averaged():
    both = {"layers": "conv"}, {"layers": "all"}
    runs = [record(arm="off", seed=s, last=50.0 + s) for s in range(6)]
    runs += [record(arm="on", seed=s, last=51.0 + s, attach=both[s < 3]) for s in range(6)]
    found = findings(runs, with_claims=False)
    assert [(f.arm, f.seeds) for f in found] == [
        ("on (layers all)", (0, 1, 2)),
        ("on (layers conv)", (3, 4, 5)),
    ]
    defaults = {"layers": "all", "at": "gradient"}  # options left out equal their defaults
    runs = [record(arm="off", seed=s, last=50.0 + s) for s in range(4)]
    runs += [
        record(arm="on", seed=s, last=51.0 + s, attach=defaults if s < 2 else {"layers": "all"})
        for s in range(4)
    ]
    (one,) = findings(runs, with_claims=False)
    assert one.seeds == (0, 1, 2, 3)


def test_different_batches_are_no_pair():
    runs = [record(arm="off"), record(arm="on")]
    for run, batches in zip(runs, ("aa", "bb"), strict=True):
        run.curves[3]["batches"] = batches
    with pytest.raises(UserError, match="saw different batches in epoch 4"):
        findings(runs)


def test_pairs_from_different_environments_are_named():
    runs = study(n=3)
    runs[1] = replace(runs[1], environment={**runs[1].environment, "threads": 2})
    (found,) = findings(runs, with_claims=False)
    assert found.environments == ("seed 0: threads 1 and 2",)


def test_diverged_runs_are_counted_and_left_out_of_the_means():
    runs = study(study="mine", cell="mine", scale="own", n=6, gain=2.0)
    runs[1] = replace(runs[1], last=math.nan, best=math.nan, diverged="epoch 2, step 3: loss nan")
    (found,) = findings(runs)
    assert found.comparison.n == 5
    assert (found.divergence.without, found.divergence.with_) == (0, 1)
    assert found.verdict == "inconclusive"  # the pairs that survived are selected
    assert "Diverged: 0 of 6 runs without GC, 1 with GC" in conclude(found)
    gone = [replace(r, diverged="x", last=math.nan) if r.arm == "on" else r for r in runs]
    (found,) = findings(gone)
    assert found.comparison is None
    assert found.verdict == "hurts"
    assert advise(found).startswith("Do not use GC here")


def test_own_studies_use_the_words_of_a_user():
    words = [
        findings(study(study="mine", cell="mine", scale="own", gain=gain))[0].verdict
        for gain in (2.0, -2.0, 0.0)
    ]
    assert words[:2] == ["helps", "hurts"]
    assert words[2].startswith("no difference larger than")
    margin = findings(study(study="mine", cell="mine", scale="own", gain=0.0), rules=Rules(margin=0.05))[0]
    assert margin.verdict == "inconclusive"


def test_several_arms_share_one_baseline():
    runs = [*study(arm="conv", gain=1), *[r for r in study(arm="conv + FC", gain=2) if r.arm != "off"]]
    found = findings(runs)
    assert [f.arm for f in found] == ["conv", "conv + FC"]
    assert found[1].comparison.difference > found[0].comparison.difference
