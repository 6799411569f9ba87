"""One line says that GC is on, in every integration, without any set-up of logging; logging may take it over."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcent
from gradcent.integrations import attach_and_log, attach_each

SOURCES = Path(gradcent.__file__).parent / "integrations"
REPORTING = {"attach_and_log", "attach_each", "announce"}


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


LINE = "gradcent: 2 of 6 tensors centralized, 71 % of weights"  # 36 of 51


def test_the_line_is_printed_where_nothing_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own, because pytest adds handlers to the root logger."""
    code = (
        "import torch; from torch import nn; from gradcent.integrations import attach_and_log\n"
        "net = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "attach_and_log(optimizer, net)\nprint(optimizer)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == LINE
    assert done.stdout.splitlines()[-1] == LINE
    quiet = "import logging; logging.getLogger('gradcent').setLevel(logging.WARNING)\n" + code
    done = subprocess.run([sys.executable, "-c", quiet], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_logging_takes_the_line_over(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    net, optimizer = parts()
    with caplog.at_level(logging.INFO, logger="gradcent"):
        attach_and_log(optimizer, net, at="update")
    (record,) = caplog.records
    assert record.getMessage().splitlines()[0] == f"{LINE}, at the update"
    assert capsys.readouterr().err == ""


def test_each_of_several_optimizers_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    net, _ = parts()
    optimizers = [torch.optim.SGD(net[index].parameters(), lr=0.1) for index in (0, 2)]
    with caplog.at_level(logging.INFO, logger="gradcent"):
        attach_each(optimizers, net)
    lines = [record.getMessage().splitlines()[0] for record in caplog.records]
    assert lines == [
        "gradcent: 1 of 2 tensors centralized, 86 % of weights",
        "gradcent: 1 of 2 tensors centralized, 80 % of weights",
    ]


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(SOURCES.glob("*.py")) if not p.name.startswith("_")],
    ids=lambda path: path.stem,
)
def test_every_integration_reports(path: Path) -> None:
    """Each module that turns GC on calls a function that shows the line."""
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called & REPORTING, path.name
