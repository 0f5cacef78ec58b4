"""Who follows imports sees each module once, and misses none."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from labkit.imported_modules import ImportedModules, NamesInModules


def test_each_is_new_once(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = ImportedModules()
    assert set(imported.new()) == set(sys.modules)
    assert imported.new() == []
    monkeypatch.setitem(sys.modules, "first", ModuleType("first"))
    monkeypatch.setitem(sys.modules, "second", ModuleType("second"))
    assert imported.new() == ["second", "first"]
    assert imported.new() == []


def test_none_is_missed_after_the_latest_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = ImportedModules()
    monkeypatch.setitem(sys.modules, "first", ModuleType("first"))
    imported.new()
    monkeypatch.delitem(sys.modules, "first")
    monkeypatch.setitem(sys.modules, "second", ModuleType("second"))
    assert "second" in imported.new()


def test_names_are_found_in_modules_of_before_and_of_later(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ModuleType("first"), ModuleType("second")
    vars(first)["dance"], vars(second)["waltz"] = 1, 2
    monkeypatch.setitem(sys.modules, "first", first)
    names = NamesInModules("dance", "waltz")
    monkeypatch.setitem(sys.modules, "second", second)
    assert names.find() == names.find() == [("first", vars(first), "dance"), ("second", vars(second), "waltz")]
