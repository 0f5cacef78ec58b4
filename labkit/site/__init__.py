"""The course site: guides, the course map, the notebooks as learners receive them, and the reference of labkit.

`./lab docs` writes it. The pages are first staged as text under `.labkit/site`, from `docs/`, the catalogue, the
notebooks and docstrings; then Sphinx renders them with MyST-NB. Nothing is run again.
"""
