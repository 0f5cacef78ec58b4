"""`%explain`: the page that belongs to a word, to an event of a trace, or to the last error, in place."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from IPython.core.error import UsageError
from IPython.display import Markdown, display

from labkit.catalogue import guides, root, workspace
from labkit.clusters import RankFailed
from labkit.notebook.magics import Magic
from labkit.search import heading_id, passages_of
from labkit.search.explanations import Explanation, entries, explain_error, explain_word, similar_words

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_LINK = re.compile(r"\]\(([^)\s]+)\)")


def magics() -> list[Magic]:
    """The magic."""
    explain = Magic(
        "explain",
        _explain,
        """Explain a word, an event of a trace, or the last error.

        %explain                 the last error: its cause, what to do, where to see it
        %explain bucket          a word of the glossary
        %explain irecv           a name in a trace
        %explain DeadlockError   a type of error
        """,
        words=lambda: [entry.title for entry in entries("glossary.md")],
    )
    explain.option("word", nargs="*", metavar="WORD", help="such as all-reduce; the last error if you give none")
    return [explain]


def _explain(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    if not entries("glossary.md"):
        raise UsageError(f"%explain: the pages are in the course folder, and there is none in {root() / 'docs'}")
    page = _of_word(" ".join(options.word)) if options.word else _of_last_error()
    display(Markdown(shown(page, Path.cwd())))


def _of_word(word: str) -> Explanation:
    page = explain_word(word)
    if page is None:
        near = similar_words(word)
        offer = f"did you mean {' or '.join(near)}?" if near else "docs/glossary.md lists all words"
        raise UsageError(f"%explain: no page explains {word!r}; {offer}")
    return page


def _of_last_error() -> Explanation:
    error = getattr(sys, "last_value", None)
    if error is None:
        raise UsageError("%explain: no cell has failed yet; give a word, such as %explain all-reduce")
    page = page_about(error)
    if page is None:
        first = texts(error)[0].partition("\n")[0]
        raise UsageError(f"%explain: no page has this error: {first[:120]}; docs/troubleshooting.md lists those it has")
    return page


def page_about(error: BaseException) -> Explanation | None:
    """Return the page that explains an error; None if no page does."""
    if isinstance(error, NameError) or _is_name_error_of_a_module(error):
        return None  # the page is about names of the notebook that a cell's ranks do not know
    return explain_error(texts(error))


def _is_name_error_of_a_module(error: BaseException) -> bool:
    """Whether a rank failed since one of the learner's modules, not the cell, uses a name that it does not have."""
    failed = error.run.first_failure if isinstance(error, RankFailed) else None
    return (
        failed is not None
        and failed.error is not None
        and failed.error.type == "NameError"
        and (failed.error.file.endswith(".py"))
    )


def texts(error: BaseException) -> Sequence[str]:
    """An error as `TYPE: MESSAGE`; of a failed run, the errors of its ranks, the first failure first.

    Those that another rank's failure has caused are left out: a page about them would lead away from the cause.
    """
    if not isinstance(error, RankFailed):
        return [f"{type(error).__name__}: {error}"]
    run = error.run
    first = run.first_failure
    ranks = [*([first] if first is not None else []), *run.ranks]
    errors = [rank.error for rank in ranks if rank.error is not None]
    causes = [error for error in errors if not error.consequence] or errors
    messages = [f"{error.type}: {error.message}" for error in causes]
    return [*([run.stopped] if run.stopped else []), *messages] or [f"RankFailed: {error}"]


def shown(entry: Explanation, folder: Path) -> str:
    """The entry as Markdown, with links that hold in a notebook of `folder`."""

    def link(match: re.Match[str]) -> str:
        address, _, anchor = match[1].partition("#")
        if "://" in address:
            return match[0]
        target = _opened((root() / "docs" / (address or entry.page)).resolve())
        place = _place(target, anchor) if anchor else ""
        return f"]({quote(os.path.relpath(target, folder))}{place})"  # of any name, also with spaces

    page = quote(os.path.relpath(guides() / entry.page, folder))
    more = f"[{entry.page.removesuffix('.md')}]({page}#{quote(heading_id(entry.title))})"
    return f"**{entry.title}**\n\n{_LINK.sub(link, entry.text)}\n\nFrom the page {more}."


def _opened(target: Path) -> Path:
    """Return where the learner opens a file of the course: their own notebook, a guide where JupyterLab has it."""
    docs, notebooks = (root() / "docs").resolve(), (root() / "notebooks").resolve()
    if target.is_relative_to(notebooks) and (own := workspace() / target.relative_to(notebooks)).exists():
        return own
    return guides() / target.relative_to(docs) if target.is_relative_to(docs) else target


def _place(page: Path, anchor: str) -> str:
    """The fragment of a heading in JupyterLab, of its anchor as GitHub and the course site make it."""
    sections = [passage.section for passage in passages_of(page)]
    heading = next(
        (text for text in sections if re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") == anchor),
        None,
    )
    return "" if heading is None else f"#{quote(heading_id(heading))}"
