"""The three complete examples of `gradcent compare`: short, and they run."""

from pathlib import Path

import pytest

from gradcent_lab.cli import main

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("compare_*.py"))


def test_there_are_three():
    assert [path.stem for path in EXAMPLES] == [
        "compare_image_classifier",
        "compare_language_model",
        "compare_unet",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(path, tmp_path, capsys):
    assert len(path.read_text().splitlines()) <= 80
    words = ["--seeds", "1", "--epochs", "1", "--out", str(tmp_path / "out")]
    assert main(["compare", f"{path}:experiment", *words]) == 0
    assert "One pair" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()
