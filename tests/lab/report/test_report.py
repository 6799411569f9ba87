"""The report: everything is in it, nothing is loaded from outside, and a real browser agrees."""

import dataclasses
import re
from html.parser import HTMLParser

import browser
import pytest
from synthetic_records import record, study

from gradcent_lab.analysis import paper_claims as claims
from gradcent_lab.analysis.findings import findings
from gradcent_lab.report.html import _missing, curve_groups, render, write_report
from gradcent_lab.report.section import Section


def sections():
    runs = [
        r for cell, gain in (("R18", 2.0), ("R101", 0.0), ("V11", -1.5)) for r in study(cell=cell, gain=gain)
    ]
    words = "10 epochs instead of 200"
    repeat = ["gradcent run table1 --scale small"]
    found = findings(runs, table=1, epoch="best")
    name = "Scale “small”, not the paper's"
    first = Section(
        runs, found, title="Table 1", description=words, scale_name=name, repeat=repeat, notes=["conv only"]
    )
    own = study(study="mine", cell="mine", scale="own", gain=0.1)
    paste = "import gradcent\n\ngradcent.attach(optimizer, model)"
    return [first, Section(own, findings(own), title="Mine", paste=paste)]


@pytest.fixture(scope="module")
def page():
    return render(sections(), title="Does it help?", kicker="test", missing=True)


class Tags(HTMLParser):
    """Checks that tags close in order and collects what could load something."""

    VOID = frozenset({"meta", "link", "br", "img", "use", "path", "input", "hr", "image"})

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.loads += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data") and v]
        self.ids += [values["id"]] if "id" in values else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_html_is_well_formed_and_loads_nothing(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert all(load.startswith(("#", "data:")) for load in tags.loads)
    assert len(tags.ids) == len(set(tags.ids))
    assert "@import" not in page
    assert not re.search(r"url\((?!#|data:)", page)


def test_the_page_has_paper_ours_n_interval_verdict_scale_and_how_to_repeat(page):
    result = sections()[0].findings[0]
    assert "76.87 → 78.82 (+1.95)" in page
    assert f"{result.comparison.without.mean:.2f} ± " in page
    for verdict in ("same direction", "no difference larger than", "opposite", "not run at this scale"):
        assert f">{verdict}" in page
    assert "Scale “small”, not the paper&#x27;s: 10 epochs instead of 200" in page
    assert "gradcent run table1 --scale small" in page
    assert "a processor" in page
    assert "Table 9" in page  # listed as not run
    assert "gradcent.attach(optimizer, model)" in page


def test_what_comes_from_records_is_escaped():
    evil = "<script>alert(1)</script>"
    runs = study(study="mine", cell=evil, scale="own")
    text = render(
        [Section(runs, findings(runs), title=evil, description=evil, notes=[evil], repeat=[evil])],
        title=evil,
        kicker=evil,
    )
    assert evil not in text
    assert text.count("<script>") == 1


def test_a_run_with_several_metrics_is_drawn_once():
    runs = []
    for run in study(study="table8", cell="R50", n=2):
        lines = [
            {**line, "AP": line["eval_metric"], "AP.5": 1.2 * line["eval_metric"]} for line in run.curves
        ]
        runs.append(dataclasses.replace(run, curves=lines, metric_name="AP", metrics=("AP", "AP.5")))
    found = findings(runs)
    assert [finding.cell for finding in found] == ["R50 AP", "R50 AP.5"]
    groups = curve_groups(found)
    assert list(groups) == ["R50 AP"]
    assert len(groups["R50 AP"]) == 4


def test_nothing_is_listed_as_missing_where_everything_ran():
    done = set(claims.TABLES)
    assert _missing(done) == ""
    assert "Table 9" in _missing(done - {9})


def test_one_pair_and_no_pair_are_reported(tmp_path):
    pair = study(n=1, study="m", scale="own")
    one = write_report([Section(pair, findings(pair))], tmp_path / "one.html", title="t")
    assert "one pair has no interval" in one.read_text()
    single = [record(arm="on")]
    found = findings(single, table=1, epoch="best")
    lonely = write_report([Section(single, found, title="x")], tmp_path / "x.html", title="t")
    assert "not run at this scale" in lonely.read_text()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if browser.find() is None:
        pytest.skip("no Chromium on this machine: the report is not rendered")
    started = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def address(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page)
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_renders_it_without_complaint(chromium, address, width, scheme, tmp_path):
    chromium.open(address, width=width, scheme=scheme)
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if not url.startswith(("file:", "data:"))] == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    drawn = "Array.from(document.querySelectorAll('figure svg')).map(s => s.getBoundingClientRect().width)"
    assert all(w > 200 or w == 0 for w in chromium.evaluate(drawn))  # 0: inside a closed details
    assert max(chromium.evaluate(drawn)) > 300
    background = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 20, 25)")
    chromium.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


def luminance(css):
    values = [int(v) / 255 for v in re.findall(r"\d+", css)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_schemes(chromium, address, scheme):
    chromium.open(address, scheme=scheme)
    colour = "getComputedStyle(document.querySelector('{}')).color"
    back = luminance(chromium.evaluate("getComputedStyle(document.body).backgroundColor"))
    for selector in ("body", ".scale", ".same-direction", ".equivalent", ".opposite", "a[href]"):
        fore = luminance(chromium.evaluate(colour.format(selector)))
        ratio = (max(fore, back) + 0.05) / (min(fore, back) + 0.05)
        assert ratio >= 4.5, (selector, ratio)


def test_it_is_used_with_the_keyboard(chromium, address):
    chromium.open(address)
    chromium.press("Tab", 9)
    assert chromium.evaluate("document.activeElement.className") == "skip"
    assert chromium.evaluate("document.activeElement.getBoundingClientRect().left") > 0  # shown when focused
    chromium.press("Tab", 9)
    before = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    chromium.press("Enter", 13)
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") != before
    closed = "document.querySelectorAll('details:not([open])').length"
    count = chromium.evaluate(closed)
    chromium.evaluate("document.querySelector('details:not([open]) summary').focus()")
    chromium.press("Enter", 13)
    assert chromium.evaluate(closed) == count - 1


def test_on_a_phone_rows_become_cards_with_their_labels(chromium, address):
    chromium.open(address, width=390)
    cell = "document.querySelector('table.stack td[data-label=\"with GC\"]')"
    assert chromium.evaluate(f"getComputedStyle({cell}).display") == "flex"
    assert chromium.evaluate(f"getComputedStyle({cell}, '::before').content") == '"with GC"'


@pytest.fixture(scope="module")
def paper_figures(tmp_path_factory):
    """A page with Figures 2, 3 and 4 as the recipes show them."""
    import numpy as np

    from gradcent_lab.report import figures
    from gradcent_lab.report.section import Picture

    random = np.random.default_rng(0)
    keys = {
        "conv_norm": "first conv, norm",
        "conv_max": "first conv, max",
        "fc_norm": "FC, norm",
        "fc_max": "FC, max",
    }
    rows = [{key: float(random.random() + 0.1) for key in keys} for _ in range(40)]
    path = [{"w": [0.1 * i, 0, 0], "gradient": [-1, 0.2, 0], "projected": [-0.7, 0.5, 0.3]} for i in range(5)]
    means = {"default": [random.normal(0, 0.01, 60) for _ in range(4)]}
    pictures = [
        Picture("fig2", *_two(lambda width: figures.projection(path, path, width=width), 6.6, 4.2)),
        Picture("fig3", *_two(lambda width: figures.initial_means(means, "small", width=width), 7.0, 4.2)),
        Picture("fig4", *_two(lambda n: figures.gradient_history(rows, rows, keys, columns=n), 4, 1)),
    ]
    runs = study(study="mine", cell="mine", scale="own")
    text = render([Section(runs, findings(runs), title="Figures", pictures=pictures)], title="t", kicker="k")
    file = tmp_path_factory.mktemp("figures") / "report.html"
    file.write_text(text)
    return file.as_uri()


def _two(draw, wide, narrow):
    return draw(wide), "caption", draw(narrow)


SCROLLING = (
    "Array.from(document.querySelectorAll('figure')).filter(e => e.scrollWidth > e.clientWidth + 1)"
    ".map(e => e.outerHTML.slice(0, 200))"
)
SHOWN = (
    "Array.from(document.querySelectorAll('svg.{}')).filter(s => s.getBoundingClientRect().width > 0).length"
)
LETTERS = (
    "Math.min(...Array.from(document.querySelectorAll('figure.full svg text')).filter(t => t.getBoundingClientRect()"
    ".width > 0).map(t => t.getBoundingClientRect().height))"
)


def test_figures_fit_a_phone_with_letters_that_can_be_read(chromium, paper_figures):
    chromium.open(paper_figures, width=390)
    assert chromium.evaluate(SCROLLING) == []
    assert chromium.evaluate(SHOWN.format("on-phone")) == 4  # the pairs and three figures
    assert chromium.evaluate(SHOWN.format("on-wide")) == 0
    assert chromium.evaluate(LETTERS) >= 8  # pixels
    chromium.open(paper_figures, width=1280)
    assert chromium.evaluate(SCROLLING) == []
    assert chromium.evaluate(SHOWN.format("on-phone")) == 0


def test_points_of_an_image_are_brighter_in_dark_mode(chromium, paper_figures):
    for scheme, expected in (("light", "none"), ("dark", "brightness(1.7) saturate(0.8)")):
        chromium.open(paper_figures, scheme=scheme)
        style = "getComputedStyle(document.querySelector('svg.on-wide image')).filter"
        assert chromium.evaluate(style) == expected


def test_paper_cuts_nothing_off(chromium, address):
    """A4 with Chromium's margins is 718 pixels wide."""
    chromium.open(address, width=718)
    chromium.send("Emulation.setEmulatedMedia", media="print")
    cut = (
        "Array.from(document.querySelectorAll('table')).filter(t => t.getBoundingClientRect().right > "
        "document.documentElement.clientWidth).length"
    )
    assert chromium.evaluate(cut) == 0
    assert chromium.evaluate(SHOWN.format("on-phone")) == 0
    assert chromium.evaluate("getComputedStyle(document.querySelector('button')).display") == "none"
    chromium.send("Emulation.setEmulatedMedia", media="")
