"""The figure of the calibration: forecast against outcome, drawn from results/ when the site is built."""

from __future__ import annotations

from gallery import STUDIES, _figure


def markdown() -> str:
    """Return the figure."""
    from gradcent_lab.recipes.presentation.calibration import figures
    from gradcent_lab.store import records as store

    (picture,) = figures([record for record in store.load(STUDIES) if record.study == "forecast"], "")
    return _figure(picture.figure, "forecast-outcome", picture.caption)
