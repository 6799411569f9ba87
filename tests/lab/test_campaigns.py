"""The short forms of the campaigns of tools/campaigns: nothing lost, wrong, silent or crashed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from campaigns.__main__ import NAMES, load


@pytest.mark.parametrize("name", NAMES)
def test_short_form(name, tmp_path):
    campaign = load(name)
    figures = campaign.run(campaign.short, 1, tmp_path)
    assert figures.clean, figures.failures
    assert figures.tried >= campaign.short
