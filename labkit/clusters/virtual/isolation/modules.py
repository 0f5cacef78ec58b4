"""Modules of which every rank has its own, with its own globals, classes and caches: the learner's, and those of
installed packages that `packages` names.

A process has one `sys.modules`. For such a module it holds a stand-in that gives each thread the module of its rank, so
pickle, dataclasses and `sys.modules[__name__]` work. `import` in a rank's own modules returns the real module.
Code runs outside the locks of Python's import system: a module may communicate while it is imported.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, NamespaceLoader, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from labkit import exercises
from labkit.clusters import deepspeed_shared_memory
from labkit.clusters.program import is_learners
from labkit.clusters.virtual.isolation import packages
from labkit.clusters.virtual.isolation.current import Rank, here


class _StandIn(ModuleType):
    """Entry in `sys.modules` for a module of which every rank has its own."""

    def __getattribute__(self, name: str) -> Any:
        module_name = object.__getattribute__(self, "__dict__")["__name__"]
        module = _table(module_name).get(module_name)
        if module is None:
            # code that looks through all of sys.modules must not run a module that this rank has not imported
            if _is_label(name) and name != "__dict__":
                return object.__getattribute__(self, name)
            module = _loaded(module_name)
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        module_name = object.__getattribute__(self, "__dict__")["__name__"]
        module = _table(module_name).get(module_name)
        if module is not None:
            setattr(module, name, value)
        elif _is_label(name):
            object.__setattr__(self, name, value)
        elif not isinstance(value, _StandIn):  # Python's import system binds submodules to packages; so does `_load`
            setattr(_loaded(module_name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_loaded(object.__getattribute__(self, "__dict__")["__name__"]), name)

    def __dir__(self) -> list[str]:
        return dir(_loaded(object.__getattribute__(self, "__dict__")["__name__"]))


class _Finder(Loader):
    """First in `sys.meta_path`: gives such a module its stand-in, which runs nothing before it is used."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        spec = _specs.get(name) or _find(name, path, by_learner=False)
        if spec is None:
            return None
        is_package = spec.submodule_search_locations is not None
        own_spec = ModuleSpec(name, self, origin=spec.origin, is_package=is_package)
        own_spec.submodule_search_locations = spec.submodule_search_locations
        return own_spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _stand_ins.setdefault(spec.name, _StandIn(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: each rank runs the module's code for itself."""


_finder = _Finder()
_specs: dict[str, ModuleSpec] = {}
_stand_ins: dict[str, _StandIn] = {}
"""One for each such module, whichever ranks import it at the same time."""
_code: dict[str, CodeType] = {}
_outside: dict[str, ModuleType] = {}
"""Modules of threads that belong to no rank."""
_first: dict[str, dict[str, ModuleType]] = {}
"""Modules of the rank that was first to load a module of an installed package, by that module's name."""
_unfinished: set[int] = set()
"""Modules whose code is running, by id."""
_common: dict[str, dict[str, ModuleType]] = {}
"""Modules of installed packages that cannot be loaded twice, by package."""


def separate() -> None:
    """Give each rank its own `__main__`, builtins, exercises, modules from the learner's files, and packages."""
    packages.begin()
    _outside["__main__"] = sys.modules["__main__"]
    sys.modules["__main__"] = _StandIn("__main__")
    sys.meta_path.insert(0, _finder)
    exercises.place_with(_place)
    original = importlib.import_module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        absolute = importlib.util.resolve_name(name, package) if name.startswith(".") else name
        return _own(absolute, is_learners(sys._getframe(1).f_code.co_filename)) or original(name, package)

    importlib.import_module = import_module


def new_main(rank: Rank) -> ModuleType:
    """The rank's `__main__`, empty."""
    main = ModuleType("__main__")
    rank.modules["__main__"] = main
    # a rank may replace `print`, for its own code only
    rank.builtins = ModuleType("builtins")
    rank.builtins.__dict__.update(vars(builtins), __import__=_import)
    rank.modules["builtins"] = rank.builtins
    main.__dict__["__builtins__"] = rank.builtins
    return main


def _table(name: str) -> dict[str, ModuleType]:
    """The modules among which this rank finds the module of that name."""
    if _common and (package := name.partition(".")[0]) in _common:
        return _common[package]
    rank = here.rank
    return _outside if rank is None else rank.modules


def _is_label(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _place(module: ModuleType) -> None:
    """Make an exercise's module, which is about to run, this rank's own."""
    _table(module.__name__)[module.__name__] = module
    _give_builtins(module)
    sys.modules.setdefault(module.__name__, _StandIn(module.__name__))


def _give_builtins(module: ModuleType) -> None:
    rank = here.rank
    if rank is not None and rank.builtins is not None:
        module.__dict__["__builtins__"] = rank.builtins.__dict__


def _find(name: str, path: Sequence[str] | None, by_learner: bool) -> ModuleSpec | None:
    """Spec of the module if it is a Python module of which every rank has its own."""
    if name in sys.builtin_module_names:
        return None
    spec = PathFinder.find_spec(name, path)
    if spec is None:
        return None
    if isinstance(spec.loader, SourceFileLoader):
        places = [spec.loader.path]
    elif spec.loader is None or isinstance(spec.loader, NamespaceLoader):
        places = list(spec.submodule_search_locations or ())
    else:
        return None
    if not all(map(is_learners, places)) and not packages.is_each_ranks_own(name, by_learner):
        packages.warn_if_shared(spec)
        return None
    _specs[name] = spec
    return spec


def _own(name: str, by_learner: bool = False) -> ModuleType | None:
    """This rank's own module of that name, imported if necessary; None if the ranks share it."""
    module = _table(name).get(name)
    if module is not None:
        return module
    parent, _, child = name.rpartition(".")
    package = _own(parent, by_learner) if parent else None
    known = sys.modules.get(name)  # perhaps imported by its package
    if isinstance(known, _StandIn):
        return _loaded(name)
    if parent and package is None:
        return None
    path = getattr(package, "__path__", None)
    if parent and path is None:
        raise ModuleNotFoundError(f"No module named {name!r}; {parent!r} is not a package", name=name)
    if known is None and _find(name, path, by_learner) is not None:
        sys.modules.setdefault(name, _stand_in(name))  # another rank may have done so meanwhile
        return _loaded(name)
    if package is None:
        return None
    _python_import(name)  # a compiled module, which a process loads once; or there is none
    setattr(package, child, sys.modules[name])
    return sys.modules[name]


def _stand_in(name: str) -> ModuleType:
    spec = _finder.find_spec(name)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def _loaded(name: str) -> ModuleType:
    """This rank's module, with its code run if it has not run yet."""
    table = _table(name)
    module = table.get(name)
    if module is not None:
        return module
    if name not in _specs:  # an exercise imported by another rank
        return exercises.__getattr__(name.rpartition(".")[2])
    parent, _, child = name.rpartition(".")
    package = _loaded(parent) if parent else None
    if name in table:  # imported by its package
        return table[name]
    try:
        _run(name, table)
    except Exception as error:
        if not _share(name, table, error):
            raise
        table = _table(name)
    if package is not None:
        setattr(package, child, table[name])
    return table[name]


def _run(name: str, table: dict[str, ModuleType]) -> None:
    """Run the module's code for this rank, and put the module into its table."""
    spec = _specs[name]
    module = table[name] = importlib.util.module_from_spec(spec)
    _give_builtins(module)
    if not isinstance(spec.loader, SourceFileLoader):
        return
    stand_in = _stand_ins[name]
    _unfinished.add(id(module))
    try:
        if name not in _code:
            code = spec.loader.get_code(name)
            assert code is not None
            _code[name] = code
        exec(_code[name], module.__dict__)
    except BaseException:
        table.pop(name, None)
        raise
    finally:
        _unfinished.discard(id(module))
    deepspeed_shared_memory.leave_out(module)
    replacement = sys.modules.get(name)
    if replacement is not None and replacement is not stand_in:  # as modules do that import lazily
        table[name] = replacement
        sys.modules[name] = stand_in
    if not is_learners(spec.loader.path):
        _first.setdefault(name, table)


def _share(name: str, table: dict[str, ModuleType], error: Exception) -> bool:
    """Make a module that could be loaded only once, since it registers something in the process, common to all ranks:
    with its whole package, if that is still being loaded. Returns False if `error` has another cause.
    """
    package = name.partition(".")[0]
    first = _first.get(name, table)
    if first is table or (name != package and id(table.get(package)) in _unfinished):
        return False
    if name == package:
        _common[package] = first
        for own in [own for own in table if own.startswith(f"{package}.")]:
            del table[own]
    else:
        table[name] = first[name]
    print(
        f"labkit: {name} cannot be loaded once for each rank ({type(error).__name__}: {error}): ranks share it and"
        " whatever it remembers. With --ranks processes each rank has its own.",
        file=sys.stderr,
    )
    return True


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """`import` in a module of which every rank has its own."""
    package = globals.get("__package__") if level and globals else None
    if level and not package:
        return _python_import(name, globals, locals, fromlist or (), level)  # raises the right error
    absolute = importlib.util.resolve_name("." * level + name, str(package)) if level else name
    by_learner = is_learners(sys._getframe(1).f_code.co_filename)
    module = _own(absolute, by_learner)
    if module is None:
        return _python_import(name, globals, locals, fromlist or (), level)
    if not fromlist:
        top = absolute.partition(".")[0]
        return _own(top) or _python_import(top)
    if hasattr(module, "__path__"):
        for item in getattr(module, "__all__", ()) if "*" in fromlist else fromlist:
            if not hasattr(module, item):
                try:
                    _own(f"{absolute}.{item}")
                except ModuleNotFoundError as error:
                    if error.name != f"{absolute}.{item}":
                        raise
    return module


_python_import: Callable[..., ModuleType] = builtins.__import__
