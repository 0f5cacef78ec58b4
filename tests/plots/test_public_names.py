"""`labkit.plots` imports what it names at first use."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

from labkit import plots


def test_each_public_name_is_a_picture_or_its_parts_and_no_module() -> None:
    for found in pkgutil.walk_packages(plots.__path__, "labkit.plots."):  # importing a module binds its name, too
        importlib.import_module(found.name)
    for name in plots.__all__:
        assert name in dir(plots) and not isinstance(getattr(plots, name), ModuleType), name
    with pytest.raises(AttributeError, match="no attribute 'curv'"):
        _ = plots.curv
