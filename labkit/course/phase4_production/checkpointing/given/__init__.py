"""Given parts of exercise 20: storage, files with checksums, and the state of components. As `given`:

storage.make_folder(path), .write(path, parts), .sync(path), .rename(old, new), .remove(path), .list(path)
exchange(value, group)                   # plain data of all ranks, in their order
start(function, *arguments)              # in a thread; `.result()` waits, and raises its error
Snapshot(components, rank, ranks, format, copy)      # this rank's part: .file, .parts(), .describe()
RandomStates()                           # a component: the generators of this rank
manifest_text(step, metrics, descriptions)
LoadedState(storage, folder, components, rank)       # read and verified; .apply() puts it into the components
checkpoint_folders(storage), unfinished_folders(storage), is_complete(storage, folder), is_loadable(storage, folder)
"""

from labkit.course.phase4_production.checkpointing.given.agreement import exchange
from labkit.course.phase4_production.checkpointing.given.arguments import (
    check_save,
)
from labkit.course.phase4_production.checkpointing.given.background import start
from labkit.course.phase4_production.checkpointing.given.checkpointer import CheckpointerBase
from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError, describe, failure
from labkit.course.phase4_production.checkpointing.given.loading import LoadedState
from labkit.course.phase4_production.checkpointing.given.manifest import (
    MANIFEST,
    checkpoint_folders,
    is_complete,
    is_loadable,
    manifest_text,
    new_folder,
    unfinished_folders,
)
from labkit.course.phase4_production.checkpointing.given.object_storage import FsspecStorage
from labkit.course.phase4_production.checkpointing.given.random_states import RandomStates
from labkit.course.phase4_production.checkpointing.given.snapshot import Snapshot
from labkit.course.phase4_production.checkpointing.given.storage import Hole, LocalStorage, Storage

__all__ = [
    "MANIFEST",
    "CheckpointError",
    "CheckpointerBase",
    "FsspecStorage",
    "Hole",
    "LoadedState",
    "LocalStorage",
    "RandomStates",
    "Snapshot",
    "Storage",
    "check_save",
    "checkpoint_folders",
    "describe",
    "exchange",
    "failure",
    "is_complete",
    "is_loadable",
    "manifest_text",
    "new_folder",
    "start",
    "unfinished_folders",
]
