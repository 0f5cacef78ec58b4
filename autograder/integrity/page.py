"""The report as one HTML page: no scripts, no external resources, all text of learners escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from itertools import groupby

from autograder.integrity.report import ALIKE_INNOCENT, Finding, Pair, Report, Side, printable
from autograder.integrity.similar import Passage

_COLOURS = 6
_NEAR = 3
"""Lines of context shown around a passage."""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 96rem; margin: 1.5rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.note { max-width: 60rem; color: #444; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; overflow-wrap: anywhere; }
td { vertical-align: top; padding: .3rem .8rem .3rem 0; border-top: 1px solid #ccc; } td p { margin: .3rem 0 0; }
td:nth-child(1) { width: 17%; } td:nth-child(2) { width: 15%; } td:nth-child(3) { width: 36%; }
pre, code { font: 12.5px/1.5 ui-monospace, monospace; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
details { border-top: 1px solid #ccc; padding: .4rem 0; } summary { cursor: pointer; }
.side details { padding: 0; } .side summary { padding-left: .6rem; color: #595959; font-size: .85rem; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: .6rem 0; }
.side { min-width: 0; border: 1px solid #ccc; }
.side h3 { font-size: 1rem; margin: 0; padding: .3rem .6rem; background: #f3f3f3; }
.line { display: grid; grid-template-columns: 3.2rem 2.6rem 1fr; }
.line > span { color: #767676; text-align: right; padding-right: .6rem; font: 12.5px/1.5 ui-monospace, monospace; }
.line > b { font: bold 12.5px/1.5 ui-monospace, monospace; }
.p0 { background: #d6e8f5; } .p1 { background: #fbe6c4; } .p2 { background: #cfeee3; }
.p3 { background: #f5dfea; } .p4 { background: #f7f4bf; } .p5 { background: #e4e0f4; }
@media (max-width: 50rem) { .sides { grid-template-columns: 1fr; } }
"""
# Tints of Okabe and Ito's colours; each passage also has its number, on both sides.


def page(report: Report) -> str:
    """Return the whole page."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"What to look at: {_safe(report.phase)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{title}</h1>{_opening(report)}{_pairs(report)}{_findings(report)}</body></html>\n"
    )


def _opening(report: Report) -> str:
    earlier = f", beside {report.earlier} of earlier courses" if report.earlier else ""
    out = "".join(
        f"<li>{len(names)}, {_safe(reason)}: {', '.join(map(_safe, names))}</li>"
        for reason, names in report.left_out.items()
    )
    left = f"<p>Modules that were not compared:</p><ul>{out}</ul>" if out else ""
    hidden = " Names are hidden; code and comments may still tell them." if report.anonymous else ""
    return (
        f'<div class="note"><p>{_count(report.submissions, "submission")}{earlier}. '
        "These are places to look at, for a person to judge. None of them changes a mark, and none of them shows by "
        f"itself that somebody did wrong: each says why it may mean nothing.{hidden}</p>{left}</div>"
    )


def _pairs(report: Report) -> str:
    if not report.pairs:
        return "<h2>Passages in common</h2><p>No two submissions share more than the exercise explains.</p>"
    shown = "".join(_pair(pair, number) for number, pair in enumerate(report.pairs, start=1))
    more = f"<p>{_count(report.more_pairs, 'pair')} more, less alike, not shown.</p>" if report.more_pairs else ""
    return (
        f'<h2>Passages in common: {_count(len(report.pairs), "pair")}</h2><p class="note">{escape(ALIKE_INNOCENT)} '
        "Compared is what a module says that the template, the solution and most of the others do not. The share is of "
        "what the shorter one has of its own. Passages of one number say the same, whatever their names and layout."
        f"</p>{_groups(report)}{shown}{more}"
    )


def _groups(report: Report) -> str:
    """List learners connected through pairs, for groups of more than two."""
    rows = "".join(f"<li>{', '.join(_safe(name) for name in group)}</li>" for group in report.groups)
    return f"<p>Pairs that hang together:</p><ul>{rows}</ul>" if rows else ""


def _pair(pair: Pair, number: int) -> str:
    same = f", {_count(len(pair.comments), 'comment')} word for word" if pair.comments else ""
    lines = len({line for passage in pair.passages for line in passage.left})
    left, right = _marks(pair, 0), _marks(pair, 1)
    words = "".join(f"<li>line {a} and line {b}: <code>{_safe(text)}</code></li>" for a, b, text in pair.comments[:20])
    return (
        f"<details{' open' if number <= 3 else ''}><summary><b>{_who(pair.left)}</b> and <b>{_who(pair.right)}</b>: "
        f"{pair.share:.0%} in common, {_count(len(pair.passages), 'passage')}, {_count(lines, 'line')}{same} "
        f"<small>({_safe(pair.exercise)})</small></summary>"
        f"{f'<p>The same comments:</p><ul>{words}</ul>' if words else ''}"
        f'<div class="sides">{_side(pair.left, left)}{_side(pair.right, right)}</div></details>'
    )


def _marks(pair: Pair, side: int) -> dict[int, int]:
    """Map each line to its passage; the longest if there are several."""
    marks: dict[int, int] = {}
    for number, passage in enumerate(pair.passages, start=1):
        for line in _of(passage, side):
            marks.setdefault(line, number)
    return marks


def _of(passage: Passage, side: int) -> tuple[int, ...]:
    return passage.right if side else passage.left


def _side(side: Side, marks: Mapping[int, int]) -> str:
    lines = list(enumerate(side.source.splitlines(), start=1))
    near = {at + step for at in marks for step in range(-_NEAR, _NEAR + 1)}
    parts = []
    for shown, block in groupby(lines, key=lambda line: line[0] in near):
        rows = [_line(number, text, marks.get(number)) for number, text in block]
        if shown or len(rows) <= _NEAR:
            parts += rows
        else:
            parts.append(f"<details><summary>{_count(len(rows), 'line')} more</summary>{''.join(rows)}</details>")
    return f'<section class="side"><h3>{_who(side)}</h3>{"".join(parts)}</section>'


def _line(number: int, text: str, passage: int | None) -> str:
    colour = f" p{(passage - 1) % _COLOURS}" if passage else ""
    marker = f"[{passage}]" if passage else ""
    return f'<div class="line{colour}"><span>{number}</span><b>{marker}</b><pre>{_safe(text)}</pre></div>'


def _findings(report: Report) -> str:
    if not report.findings:
        return "<h2>In single submissions</h2><p>Nothing out of the ordinary.</p>"
    parts = []
    for student, group in groupby(report.findings, key=lambda finding: finding.student):
        rows = "".join(map(_finding, group))
        parts.append(f"<h3>{_safe(student)}</h3><table>{rows}</table>")
    return f"<h2>In single submissions</h2>{''.join(parts)}"


def _finding(finding: Finding) -> str:
    many = f"<p>The same in {finding.same_in} submissions.</p>" if finding.same_in > 1 else ""
    detail = f"<pre>{_safe(finding.detail)}</pre>" if finding.detail else ""
    return (
        f"<tr><td>{_safe(finding.title)}</td><td>{_safe(finding.place)}</td>"
        f"<td><code>{_safe(finding.what)}</code>{detail}</td>"
        f'<td class="note">{escape(finding.innocent)}{many}</td></tr>'
    )


def _who(side: Side) -> str:
    return _safe(side.student) + (f" ({_safe(side.course)})" if side.course else "")


def _safe(text: str) -> str:
    return escape(printable(text))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
