"""What a release depends on: one version, actions pinned by commit, the same tools here and in the workflow."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture
def check_version():
    spec = importlib.util.spec_from_file_location("check_version", ROOT / "tools" / "check_version.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_library_changelog_and_citation_state_one_version(check_version):
    assert check_version.problems() == []


@pytest.mark.parametrize("page", ["CITATION.cff", "CHANGELOG.md"])
def test_another_version_is_noticed(check_version, tmp_path, page):
    for name in ("CITATION.cff", "CHANGELOG.md", "src/gradcent/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    version = check_version.stated_version(tmp_path)
    path = tmp_path / page
    path.write_text(path.read_text().replace(version, "9.9.9"))
    (problem,) = check_version.problems(root=tmp_path)
    assert page in problem
    assert any("the tag is v8.0.0" in line for line in check_version.problems("v8.0.0", tmp_path))


def test_actions_are_pinned_by_commit():
    uses = [
        (path.name, line)
        for path in WORKFLOWS
        for line in re.findall(r"uses: (.*)", path.read_text())
        if not line.startswith("./")
    ]
    assert len(uses) > 8
    for name, line in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", line), f"{name}: {line}"


def test_the_release_workflow_uses_the_pinned_tools():
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "requirements" / "release.txt").read_text(), re.M))
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    used = dict(re.findall(r"\b([a-z][\w-]+)==([\d.]+)", text))
    shared = pins.keys() & used.keys()
    assert {"build", "twine", "abi3audit"} <= shared
    assert {name: used[name] for name in shared} == {name: pins[name] for name in shared}


def test_pre_commit_runs_the_linters_of_make_lint():
    yaml = pytest.importorskip("yaml")
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = {hook["id"]: hook["entry"] for hook in repo["hooks"]}
    makefile = (ROOT / "Makefile").read_text()
    for command in ("ruff check", "ruff format --check", "mypy"):
        assert any(entry.endswith(f"/{command}") for entry in entries.values())
        assert f"$(BIN)/{command}" in makefile
