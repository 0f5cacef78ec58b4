"""Results of an analysis: findings, each with advice, and pictures."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from labkit.plots import Picture


@dataclass(frozen=True)
class Finding:
    """Something that limits the run."""

    text: str
    """Observation, with its figures."""
    advice: str = ""
    """Remedy to try."""


@dataclass
class Analysis:
    """All that is known about a run or a study."""

    title: str
    facts: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Findings, the one that costs most first."""
    pictures: list[Picture] = field(default_factory=list)
    table: str = ""
    """Table in Markdown."""

    def text(self) -> str:
        """Return it as text for a terminal, and as Markdown."""
        lines = [f"# {self.title}", "", *(f"- {fact}" for fact in self.facts), "", "## What limits it", ""]
        for finding in self.findings:
            lines.append(f"- {finding.text}" + (f" Try: {finding.advice}" if finding.advice else ""))
        return "\n".join([*lines, *(["", self.table] if self.table else [])]) + "\n"

    def page(self) -> str:
        """Return it as one HTML page with its pictures, which needs no other file."""
        facts = "".join(f"<li>{html.escape(fact)}</li>" for fact in self.facts)
        findings = "".join(
            f"<li>{html.escape(finding.text)}"
            + (f" <em>Try: {html.escape(finding.advice)}</em>" if finding.advice else "")
            + "</li>"
            for finding in self.findings
        )
        pictures = "\n".join(f"<p>{picture.mimebundle()[0]['text/html']}</p>" for picture in self.pictures)
        table = f"<pre>{html.escape(self.table)}</pre>" if self.table else ""
        title = html.escape(self.title)
        return (
            f"<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>{title}</title>\n"
            "<style>body { font-family: sans-serif; margin: 2em } img { max-width: 100% }</style>\n"
            f"<h1>{title}</h1>\n<ul>{facts}</ul>\n<h2>What limits it</h2>\n<ol>{findings}</ol>\n{pictures}\n{table}\n"
            "</html>\n"
        )
