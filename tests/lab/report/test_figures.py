"""Figures: what is drawn, in both formats, and as an element of a page."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from synthetic_records import study

from gradcent_lab.analysis.findings import findings
from gradcent_lab.report import figures
from gradcent_lab.report.figures import style
from gradcent_lab.report.figures.curves import arms_of, mean_curve, train_and_test


def descent(project):
    """Rows of a real descent in three dimensions."""
    w, rows = np.array([1.5, -0.5, 1.0]), []
    matrix = np.eye(3) - np.full((3, 3), 1 / 3)
    for _ in range(20):
        gradient = np.array([1.0, 2.0, 0.5]) * (w - np.array([-0.5, 0.25, 0.5]))
        rows.append(
            {"w": w.tolist(), "gradient": gradient.tolist(), "projected": (matrix @ gradient).tolist()}
        )
        w = w - 0.15 * (matrix @ gradient if project else gradient)
    return rows


def history(scale):
    keys = ("conv_norm", "conv_max", "fc_norm", "fc_max")
    return [{key: scale * (1 + index % 7) for key in keys} for index in range(50)]


def every_figure():
    runs = study()
    means = [np.random.default_rng(0).normal(0, 1e-3, 40) for _ in range(3)]
    names = {"conv_norm": "first conv, norm", "conv_max": "max", "fc_norm": "norm", "fc_max": "max"}
    return {
        "projection": figures.projection(descent(False), descent(True)),
        "means": figures.initial_means({"Kaiming": means, "pretrained": means}, "smoke scale"),
        "history": figures.gradient_history(history(2.0), history(1.0), names, "smoke scale"),
        "curves": figures.learning_curves(runs, note="small scale, n = 5"),
        "train-test": train_and_test([("a", runs), ("b", runs)], note="small scale"),
        "differences": figures.differences(findings(runs, table=1, epoch="best"), "small scale"),
    }


@pytest.fixture(scope="module")
def drawn():
    return every_figure()


def test_every_figure_is_written_as_valid_svg_and_png_with_its_scale(drawn, tmp_path):
    for name, figure in drawn.items():
        svg, png = figures.save(figure, tmp_path / name)
        ET.parse(svg)
        assert name == "projection" or "scale" in svg.read_text()
        assert png.read_bytes().startswith(b"\x89PNG")
        assert png.stat().st_size > 5000


def test_equal_figures_give_equal_files(tmp_path):
    first = figures.save(figures.learning_curves(study()), tmp_path / "a" / "curves")
    second = figures.save(figures.learning_curves(study()), tmp_path / "b" / "curves")
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_inline_figures_follow_the_pages_colours_and_keep_their_ids_apart(drawn):
    pages = [figures.inline_svg(drawn["curves"], name, 'a "label" & more') for name in ("one", "two")]
    for page in pages:
        ET.fromstring(page)
        assert 'role="img" aria-label="a &quot;label&quot; &amp; more"' in page
        assert "var(--off)" in page
        assert "var(--on)" in page
        for colour in style.VARIABLES:
            assert colour not in page
        assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    ids = [set(re.findall(r'id="([^"]+)"', page)) for page in pages]
    assert ids[0]
    assert not ids[0] & ids[1]
    for page, own in zip(pages, ids, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", page)) <= own


def test_curves_draw_the_mean_over_seeds():
    runs = study(n=3, epochs=4)
    arms = arms_of(runs)
    assert list(arms) == ["without GC", "with GC"]
    expected = np.mean(
        [[line["eval_metric"] for line in run.curves] for run in runs if run.arm == "off"], axis=0
    )
    assert mean_curve(arms["without GC"], "eval_metric") == pytest.approx(expected)
    axis = figures.learning_curves(runs, ("eval_metric",)).axes[0]
    thick = next(line for line in axis.lines if line.get_label() == "without GC")
    assert thick.get_ydata() == pytest.approx(expected)
    assert len(axis.lines) == 2 + 2 * 3


def test_several_arms_are_told_apart_and_the_baseline_comes_first():
    runs = [*study(arm="conv"), *[r for r in study(arm="conv + FC") if r.arm != "off"]]
    assert list(arms_of(runs)) == ["without GC", "with GC (conv)", "with GC (conv + FC)"]


def test_the_path_with_gc_is_drawn_in_its_hyperplane(drawn):
    rows = descent(True)
    assert np.ptp([sum(row["w"]) for row in rows]) < 1e-12
    labels = [text.get_text() for text in drawn["projection"].axes[0].texts]
    assert "$w^0$" in labels


def test_drawing_leaves_the_users_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30}):
        figure = figures.learning_curves(study(n=2))
        assert figure.axes[0].xaxis.label.get_fontsize() < 12
        assert matplotlib.rcParams["font.size"] == 30
    assert dict(matplotlib.rcParams) == before
