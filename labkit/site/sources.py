"""Pages of source files that documents link to: highlighted text with line numbers, without Sphinx."""

from __future__ import annotations

import html
from pathlib import PurePosixPath

from labkit.catalogue import root

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{path}</title>
<style>
body {{ margin: 0 auto; max-width: 70rem; padding: 1rem; font-family: system-ui, sans-serif; }}
a {{ color: #0a4bff; }}
pre {{ overflow-x: auto; padding: .7rem; font-size: .85rem; }}
{light}
@media (prefers-color-scheme: dark) {{
body {{ background: #131416; color: #cfd0d0; }}
a {{ color: #80a7ff; }}
{dark}
}}
</style>
</head>
<body>
<p><a href="{home}">A lab for distributed training</a></p>
<main>
<h1><code>{path}</code></h1>
{code}
</main>
</body>
</html>
"""


def source_page(path: str) -> str:
    """The page of the repository file `path`, to be shown at `source/PATH.html`."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_for_filename

    light, dark = (HtmlFormatter(style=f"a11y-high-contrast-{scheme}") for scheme in ("light", "dark"))
    code = highlight((root() / path).read_text(), get_lexer_for_filename(path), light)
    return _PAGE.format(
        path=html.escape(path),
        home="../" * len(PurePosixPath(path).parts) + "index.html",
        code=code.replace("<pre>", '<pre tabindex="0">', 1),
        light=light.get_style_defs(".highlight"),
        dark=dark.get_style_defs(".highlight"),
    )
