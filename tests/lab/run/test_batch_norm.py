"""BatchNorm statistics: re-estimation, the control evaluation, and the verdict where they explain the difference."""

from dataclasses import replace

import pytest
import torch
from synthetic_records import study
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab.analysis.bn_lag import CONTROL
from gradcent_lab.analysis.findings import findings
from gradcent_lab.compare import digits
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.spec import Experiment, describe
from gradcent_lab.report.tables import findings_table
from gradcent_lab.report.wording import advise, conclude
from gradcent_lab.run.batch_norm import batch_norms, recalibrated
from gradcent_lab.run.scheduler import run_pairs


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 2)
    )


def experiment(**changes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 1, 8, 8, generator=generator) + 2
    y = (x[:, 0, 3, 3] > 2).long()
    fields = {
        "name": "bn",
        "model": network,
        "train_data": TensorDataset(x[:64], y[:64]),
        "eval_data": TensorDataset(x[64:], y[64:]),
        "loss": nn.functional.cross_entropy,
        "metric": lambda output, target: output.argmax(1) == target,
        "metric_name": "accuracy, %",
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.05),
        "epochs": 2,
        "batch_size": 16,
    }
    return Experiment(**{**fields, **changes})


def test_re_estimated_statistics_are_the_average_of_the_batches_and_are_put_back():
    torch.manual_seed(0)
    model = network().train()
    batches = [torch.randn(16, 1, 8, 8) * 3 + 1 for _ in range(5)]
    for batch in batches:
        model(batch)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with recalibrated(model, batches, model):
        assert not model.training
        outputs = [model[0](batch) for batch in batches]
        mean = torch.stack([output.mean((0, 2, 3)) for output in outputs]).mean(0)
        variance = torch.stack([output.var((0, 2, 3)) for output in outputs]).mean(0)
        torch.testing.assert_close(model[1].running_mean, mean)
        torch.testing.assert_close(model[1].running_var, variance)
    assert torch.equal(torch.get_rng_state(), state)  # dropout drew nothing
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert model[1].momentum == 0.1
    assert batch_norms(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False))) == []


def test_the_control_is_evaluated_in_the_last_epoch_and_changes_no_training(tmp_path):
    plain, other = (
        run_pairs(experiment(recalibrate_bn=flag), [OFF], [0], tmp_path)[0] for flag in (False, True)
    )
    assert plain.path != other.path
    assert CONTROL not in plain.curves[0]
    # the same weights: what one run judges is the other's control
    assert plain.curves[-1][CONTROL] == other.curves[-1]["eval_metric"]
    assert other.curves[-1][CONTROL] == plain.curves[-1]["eval_metric"]
    assert [line["train_loss"] for line in plain.curves] == [line["train_loss"] for line in other.curves]
    assert "recalibrate_bn" not in describe(experiment())


def test_a_model_without_batch_norm_has_no_control(tmp_path):
    plain = experiment(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)))
    (record,) = run_pairs(plain, [OFF], [0], tmp_path)
    assert CONTROL not in record.curves[-1]


def own_study(control_gain):
    runs = study(study="mine", cell="mine", scale="own", metric="accuracy, %", gain=16.9, n=6)
    for off, on in zip(runs[::2], runs[1::2], strict=True):
        off.curves[-1][CONTROL] = 90.0 + off.seed / 10
        on.curves[-1][CONTROL] = 90.0 + on.seed / 10 + control_gain + (on.seed % 2) / 10
    return findings(runs)[0]


def test_a_difference_that_re_estimation_removes_is_not_called_help():
    found = own_study(-0.3)
    assert found.comparison.shown
    assert (found.verdict, found.answer.because) == ("inconclusive", "batch norm")
    assert found.control.difference == pytest.approx(-0.25)
    assert "With re-estimated BatchNorm statistics: −0.25 points" in conclude(found)
    assert "--recalibrate-bn" in advise(found)
    table = findings_table([found])
    assert "−0.25" in table.rows[0][table.header.index("BatchNorm control")]
    assert any("BatchNorm" in note for note in table.notes)


def test_a_difference_that_stays_is_help():
    assert own_study(15.0).verdict == "helps"


def batch_norm_digits():
    """Four convolutions with BatchNorm on 300 images, five epochs at a constant learning rate."""

    def conv(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    def model():
        layers = (*conv(1, 16), *conv(16, 32), nn.MaxPool2d(2), *conv(32, 32), *conv(32, 64))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    pixels, labels = digits.images()
    return replace(
        digits.digits(5),
        model=model,
        train_data=digits.Batches(pixels[:300], labels[:300]),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=5e-4),
        batch_size=64,
    )


def test_lag_on_real_digits_is_told_from_the_weights(tmp_path):
    """Running statistics cost the arm without GC many points, the weights do not."""
    records = run_pairs(batch_norm_digits(), [OFF, ON], range(3), tmp_path)
    (found,) = findings(records)
    assert found.comparison.difference > 5
    assert abs(found.control.difference) < found.comparison.difference / 2
    assert (found.verdict, found.answer.because) == ("inconclusive", "batch norm")
