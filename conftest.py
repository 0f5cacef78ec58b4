"""For every pytest run in this checkout: the notebooks, `tests/` and the grader's own tests."""

pytest_plugins = ["kernels", "side_by_side", "skips", "system_packages", "slowest"]  # in tests/plugins
