"""The site's own parts of Sphinx: docstrings in Markdown, formulas as MathML, pictures of notebooks."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

from labkit.site.docstrings import restructured
from labkit.site.glossary_links import link_terms
from labkit.site.page_head import describe


def setup(app: Sphinx) -> dict[str, Any]:
    """Set up the extension; called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("doctree-resolved", link_terms)
    app.connect("html-page-context", _accessible, priority=900)  # after the theme
    app.connect("html-page-context", _live)
    app.connect("html-page-context", _head)
    app.connect("html-page-context", _figures)
    app.connect("html-page-context", _without_cells)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(visitor: Any, node: nodes.math) -> None:
    visitor.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _block(visitor: Any, node: nodes.math_block) -> None:
    visitor.body.append(f'<div class="math" tabindex="0">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def _docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines, _parameters(obj))


def _parameters(obj: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(obj).parameters) if callable(obj) else ()
    except (TypeError, ValueError):  # built in, or without a signature
        return ()


def _accessible(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Add what Sphinx leaves out: levels of the navigation's headings, and keyboard access to code that is scrolled."""
    navigation = str(context.get("furo_navigation_tree", ""))
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')
    if "body" in context:
        context["body"] = context["body"].replace("<pre>", '<pre tabindex="0">')


def _live(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Load viewer and player on pages with live pictures."""
    if "labkit-live" in context.get("body", ""):
        up = "../" * page.count("/")
        context["metatags"] = (
            f'{context.get("metatags", "")}<link rel="stylesheet" href="{up}live/live.css">'
            f'<script src="{up}live/live.js"></script>'
        )


def _head(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    describe(page, doctree, context)


def _figures(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Load style and script of figures on pages that have one."""
    if "lab-figure" in context.get("body", ""):
        app.add_css_file("figures.css")
        app.add_js_file("figures.js", loading_method="defer")


def _without_cells(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave out the style of notebooks' cells, a fifth of what a page loads, where there are none."""
    if 'class="cell ' not in context.get("body", ""):
        context["css_files"] = [file for file in context["css_files"] if "mystnb" not in str(file.filename)]


def _copy(app: Sphinx, failure: Exception | None) -> None:
    if failure is None:
        for folder in (Path(app.srcdir) / "copied").iterdir():
            target = Path(app.outdir) / folder.name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)
