"""Sphinx configuration of the documentation site: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import gradcent

project = "gradcent"
author = "The gradcent developers"
copyright = "The gradcent developers, MIT licence"
version = release = gradcent.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "jupyter_execute"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}

# MyST: headings are link targets (page.md#heading), as they are on GitHub
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
nb_execution_mode = "auto"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True

# The site works offline: no fonts, scripts or badges from elsewhere. MathJax is the one exception, and is
# loaded only by pages with formulas.
html_theme = "furo"
html_title = f"gradcent {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True, "footer_icons": []}
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
