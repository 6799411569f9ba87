"""The complete examples of `gradcent compare`: short, and they run. Lightning's needs an environment of its own."""

from pathlib import Path

import pytest

from gradcent_lab.cli import main

ALL = sorted((Path(__file__).resolve().parents[3] / "examples").glob("compare_*.py"))
EXAMPLES = [
    path for path in ALL if path.stem != "compare_lightning"
]  # tests/engines/test_framework_lightning.py


def test_there_are_five():
    assert [path.stem for path in ALL] == [
        "compare_image_classifier",
        "compare_language_model",
        "compare_lightning",
        "compare_trainer",
        "compare_unet",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(path.read_text().splitlines()) <= 80
    words = ["--seeds", "1", "--epochs", "1", "--out", str(tmp_path / "out")]
    assert main(["compare", f"{path}:experiment", *words]) == 0
    assert "One pair" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()
