"""Run records made up for the tests of tables, figures and report."""

from pathlib import Path

import numpy as np

from gradcent_lab.store.records import RunRecord

ENVIRONMENT = {
    "versions": {"gradcent": "0.1.0", "torch": "2.6.0", "scipy": "1.12.0"},
    "python": "3.12.1",
    "system": "Linux x86_64",
    "processor": "a processor",
    "cores": 2,
    "threads": 1,
    "gpus": [],
    "processes": 1,
    "program": "gradcent",
}


def record(
    study="table1",
    cell="R18",
    arm="off",
    seed=0,
    last=50.0,
    scale="small",
    epochs=12,
    metric="accuracy",
    higher=True,
    settings=None,
    weights=None,
    attach=None,
):
    """One finished run whose curve ends at `last`."""
    rng = np.random.default_rng([seed, len(arm)])
    approach = 1 - 0.8 * np.exp(-np.arange(1, epochs + 1) / 3)
    values = last * approach / approach[-1] if higher else last / (approach / approach[-1])
    values = values + rng.normal(0, 0.8, epochs) * (np.arange(epochs) < epochs - 1)
    curves = [
        {
            "epoch": index,
            "train_loss": float(3 * np.exp(-index / 4) + 0.1),
            "train_metric": float(value + 1),
            "eval_loss": float(3 * np.exp(-index / 5) + 0.2),
            "eval_metric": float(value),
            "lr": 0.1,
            "seconds": 1.0,
            "samples_per_second": 1000.0,
        }
        for index, value in enumerate(values, start=1)
    ]
    best = max(values) if higher else min(values)
    attach = None if arm == "off" else (attach or {"layers": "all"})
    config = {
        "study": study,
        "cell": cell,
        "arm": {"name": arm, "attach": attach},
        "seed": seed,
        "scale": scale,
        "settings": settings or {"epochs": epochs, "optimizer": "SGD", "lr": 0.1},
        "numerics": {"precision": "no", "compile": False, "channels_last": False},
    }
    return RunRecord(
        study=study,
        cell=cell,
        arm=arm,
        seed=seed,
        scale=scale,
        best=float(best),
        last=float(values[-1]),
        metric_name=metric,
        higher_is_better=higher,
        curves=curves,
        config=config,
        environment=ENVIRONMENT,
        path=Path(f"runs/{study}/{cell}-{arm}-{seed}"),
        best_epoch=epochs,
        initial_weights=weights or f"weights-{cell}-{seed}",
        seconds=12.0,
    )


def study(gain=1.5, n=5, arm="on", base=50.0, **kwargs):
    """Paired runs whose difference is about `gain`."""
    rng = np.random.default_rng(5)
    base, scatter = base + rng.normal(0, 0.5, n), rng.normal(0, 0.3, n)
    records = []
    for seed in range(n):
        records.append(record(arm="off", seed=seed, last=base[seed], **kwargs))
        records.append(record(arm=arm, seed=seed, last=base[seed] + gain + scatter[seed], **kwargs))
    return records
