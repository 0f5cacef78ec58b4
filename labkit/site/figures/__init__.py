"""Figures that the reader works on a page of the site: recorded from runs on virtual ranks while the site is built.

A figure is a module with `TITLE`, `TRY` (what to try) and `ABOUT` (of which run it is; Markdown whose links begin in
the course's folder), and three functions: `record()` returns plain data, `parts(recording)` the figure's own HTML, and
`table(recording)` heading and rows of its runs, for readers without scripts. `markup` makes the whole of it, and
`../static/figures.js` moves it.
"""
