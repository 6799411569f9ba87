"""The built documentation site: links, images, every page in Chromium, search. CI runs `make docs` first."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS, SITE = ROOT / "docs", ROOT / "docs" / "_build" / "html"
sys.path.insert(0, str(ROOT / "tests" / "lab"))

import browser  # noqa: E402


class Page(HTMLParser):
    """What one HTML file refers to: links, resources that the browser loads, and its own anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(values["href"])
        elif tag in ("img", "script", "iframe") and "src" in values:
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    if not (SITE / "index.html").exists():
        if os.environ.get("CI"):
            pytest.fail("docs/_build/html is missing: .ci/run builds it with `make docs` before the tests")
        pytest.skip("the site is not built: make docs")
    return {path: Page(path) for path in sorted(SITE.rglob("*.html"))}


def test_every_page_of_docs_is_in_the_site(site: dict[Path, Page]) -> None:
    sources = [path for suffix in ("*.md", "*.ipynb") for path in DOCS.rglob(suffix)]
    pages = [path.relative_to(DOCS) for path in sources if "_build" not in path.parts]
    missing = [str(page) for page in pages if SITE / page.with_suffix(".html") not in site]
    assert pages
    assert not missing, f"built before {', '.join(missing)} existed: make docs"


def test_links_inside_the_site_lead_somewhere(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                broken.append(f"{path.name}: {link}")
            elif parts.fragment and target in site and unquote(parts.fragment) not in site[target].anchors:
                broken.append(f"{path.name}: {link} (no such anchor)")
    assert not broken


def test_pages_load_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    for path, page in site.items():
        for load in page.loads:
            parts = urlsplit(load)
            assert (not parts.scheme and not parts.netloc) or parts.scheme == "data", f"{path.name}: {load}"
            if parts.path and not parts.scheme:
                assert (path.parent / unquote(parts.path)).exists(), f"{path.name}: {load}"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory):
    if browser.find() is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is missing: .ci/run installs it")
        pytest.skip("needs Chromium")
    window = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()


def navigation(site: dict[Path, Page]) -> list[Path]:
    """The pages that the sidebar of the first page leads to, and the first page."""
    targets = [SITE / "index.html"]
    for link in site[SITE / "index.html"].links:
        parts = urlsplit(link)
        target = (SITE / parts.path).resolve()
        if not parts.scheme and parts.path.endswith(".html") and target in site and target not in targets:
            targets.append(target)
    return targets


PROBLEMS = """
({
  scroll: document.documentElement.scrollWidth - window.innerWidth,
  wide: [...document.querySelectorAll("article *")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.right > window.innerWidth + 1 && !element.closest(".table-wrapper, .highlight, .import-graph, table");
  }).slice(0, 3).map((element) => element.outerHTML.slice(0, 120)),
  broken: [...document.images].filter((image) => image.complete && !image.naturalWidth).map((image) => image.src),
  title: document.title,
})
"""


def test_every_navigation_entry_in_chromium(site: dict[Path, Page], chromium: browser.Browser) -> None:
    """On a desktop and on a phone, in light and dark: no console message, no broken image, no sideways scrolling."""
    pages = navigation(site)
    assert len(pages) > 25
    wrong = []
    for number, path in enumerate(pages):
        for width in (1280, 390):
            scheme = "dark" if (number + (width == 390)) % 2 else "light"
            chromium.open(path.as_uri(), width=width, scheme=scheme)
            seen = chromium.evaluate(PROBLEMS)
            where = f"{path.relative_to(SITE)} at {width} px"
            wrong += [f"{where}: {text}" for text in chromium.complaints()]
            wrong += [f"{where}: broken image {source}" for source in seen["broken"]]
            wrong += [
                f"{where}: asks for {url}"
                for url in chromium.requests()
                if not url.startswith(("file:", "data:"))
            ]
            if seen["scroll"] > 0:
                wrong.append(f"{where}: scrolls sideways by {seen['scroll']} px, {seen['wide']}")
            assert "gradcent" in seen["title"]
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def served() -> Iterator[str]:
    """The site on a web server of this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def search(chromium: browser.Browser, address: str, words: str, page: str) -> None:
    """Search and wait until a page is among the results, which appear one by one."""
    chromium.open(f"{address}/search.html?q={words}")
    links = "[...document.querySelectorAll('#search-results li a')].map(a => a.pathname.split('/').pop())"
    end = time.monotonic() + 30
    while page not in (results := chromium.evaluate(links)):
        assert time.monotonic() < end, results
        time.sleep(0.1)


def test_search_works_offline(site: dict[Path, Page], chromium: browser.Browser, served: str) -> None:
    """From files and from a server. From files the browser blocks the excerpts, and says so on the console."""
    search(chromium, SITE.as_uri(), "transposed+convolution", "detection.html")
    search(chromium, served, "transposed+convolution", "detection.html")
    search(chromium, served, "weight+vector", "concepts.html")
    assert chromium.complaints() == []
    assert all(url.startswith((served, "data:")) for url in chromium.requests())


def test_notebooks_are_committed_without_outputs() -> None:
    notebooks = sorted((DOCS / "notebooks").glob("*.ipynb"))
    assert len(notebooks) >= 2
    for path in notebooks:
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), f"{path.name}: clear the outputs; make docs executes the notebook"
