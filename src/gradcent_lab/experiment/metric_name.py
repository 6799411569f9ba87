"""How a metric's name is split into its name and its unit."""

from __future__ import annotations


def split_metric_name(metric: str) -> tuple[str, str]:
    """Return the metric's name and the unit that follows a difference in it.

    >>> split_metric_name("accuracy, %"), split_metric_name("loss")
    (('accuracy', ' points'), ('loss', ''))
    """
    name, percent, _ = metric.partition(", %")
    return name, " points" if percent else ""
