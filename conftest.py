"""For every pytest run in this checkout: the notebooks, `tests/` and the grader's own tests."""

# in tests/plugins
pytest_plugins = [
    "kernels",
    "left_over",
    "outcome_log",
    "ran_for_real",
    "second_try",
    "selection",
    "side_by_side",
    "skips",
    "slowest",
    "system_packages",
]
