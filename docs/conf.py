"""Sphinx configuration of the documentation site: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gradcent

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
os.environ["PATH"] = (
    f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # notebooks call `gradcent`
)

project = "gradcent"
author = "The gradcent developers"
copyright = "The gradcent developers, MIT licence"
version = release = gradcent.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "site_blocks",
]
exclude_patterns = ["_build", "_ext", "jupyter_execute"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}

# MyST: headings are link targets (page.md#heading), as they are on GitHub
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
# the notebooks are committed without outputs and executed here, in a temporary folder
nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
default_role = "code"  # `name` in a docstring is code
# the API reference needs none of the frameworks; most have an environment of their own
autodoc_mock_imports = ["fastai", "jax", "keras", "lightning", "mmengine", "optax", "transformers"]

# The site works offline: no fonts, scripts or badges from elsewhere, and no MathJax: formulas are text.
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"gradcent {release}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True, "footer_icons": []}
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
