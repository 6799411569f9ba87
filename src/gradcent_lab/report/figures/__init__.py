"""The paper's figures and the lab's own, drawn with matplotlib and saved as SVG and PNG."""

from gradcent_lab.report.figures.curves import differences, learning_curves
from gradcent_lab.report.figures.paper import gradient_history, initial_means, projection
from gradcent_lab.report.figures.style import inline_svg, save, shorten

__all__ = [
    "differences",
    "gradient_history",
    "initial_means",
    "inline_svg",
    "learning_curves",
    "projection",
    "save",
    "shorten",
]
