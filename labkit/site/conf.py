"""Sphinx's configuration of the course site. `labkit docs` passes this folder and the staged pages to Sphinx."""

from __future__ import annotations

from pathlib import Path

from labkit import repository
from labkit.site import extension
from labkit.site.places import HERE

_HERE = Path(__file__).parent

project = "A lab for distributed training"
author = "the lab's contributors"
copyright = "the lab's contributors, MIT licence"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]

# pages
nb_execution_mode = "off"
nb_code_prompt_show = "Predict first, then show the result"
nb_code_prompt_hide = "Hide the result"
nb_render_error_lexer = "text"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, HERE: "{{path}}"}
smartquotes = False  # a command in a sentence must stay one
exclude_patterns = ["copied"]
highlight_language = "default"

# reference
add_module_names = False
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
toc_object_entries = False
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True

# appearance
html_theme = "furo"
html_title = "A lab for distributed training"
html_static_path = [str(_HERE / "static")]
html_css_files = ["site.css"]
html_favicon = str(_HERE / "static" / "icon.svg")
html_baseurl = repository.site() or ""
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": False}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_exclude = ".linenos, .gp"

setup = extension.setup
