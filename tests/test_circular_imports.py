"""No module imports itself by way of others: imports for types and within functions count, too.

`lint-imports` checks the order of packages; this is about modules, and a package's `__init__` is one. The names that an
`__init__` imports when they are first used count as well: it imports them for type checkers, and whoever uses one at
run time imports its module.
"""

from __future__ import annotations

import grimp
import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def circular(graph: grimp.ImportGraph) -> list[set[str]]:
    """The groups of modules of which each imports all others, directly or by way of modules of the group."""
    modules = sorted(graph.modules)
    number = {module: i for i, module in enumerate(modules)}
    pairs = [(number[a], number[b]) for a in modules for b in graph.find_modules_directly_imported_by(a)]
    importing, imported = np.array(pairs, dtype=int).reshape(-1, 2).T
    edges = coo_array((np.ones(len(pairs)), (importing, imported)), shape=(len(modules), len(modules)))
    count, groups = connected_components(edges, connection="strong")
    found = [{modules[i] for i in np.flatnonzero(groups == group)} for group in range(count)]
    return [group for group in found if len(group) > 1]


def imports(graph: grimp.ImportGraph, group: set[str]) -> list[str]:
    """The imports within a group: `a imports b, line 3: from b import c`."""
    return [
        f"{a} imports {b}, line {detail['line_number']}: {detail['line_contents']}"
        for a in sorted(group)
        for b in sorted(graph.find_modules_directly_imported_by(a) & group)
        for detail in graph.get_import_details(importer=a, imported=b)
    ]


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("labkit", "autograder", exclude_type_checking_imports=False, cache_dir=None)
    found = circular(graph)
    assert not found, "\n".join(line for group in found for line in imports(graph, group))


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ([("a", "b"), ("b", "c"), ("a", "c")], []),
        ([("a", "b"), ("b", "a"), ("c", "a")], [{"a", "b"}]),
        ([("a", "a.b"), ("a.b", "a.c"), ("a.c", "a"), ("a", "d")], [{"a", "a.b", "a.c"}]),
        ([("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")], [{"a", "b"}, {"c", "d"}]),
    ],
)
def test_groups_are_found(pairs: list[tuple[str, str]], groups: list[set[str]]) -> None:
    graph = grimp.ImportGraph()
    for importer, imported in pairs:
        graph.add_import(importer=importer, imported=imported, line_number=1, line_contents=f"import {imported}")
    assert sorted(circular(graph), key=sorted) == groups
    for group in groups:
        assert any(line.startswith(f"{min(group)} imports ") for line in imports(graph, group))
