"""Fast creation of a gradebook: nbgrader itself starts a command, which takes seconds, to find the schema version."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from nbgrader.dbutil import ALEMBIC_DIR
from sqlalchemy import make_url


def begin(db_url: str) -> None:
    """Write the schema version if there is no gradebook yet; nbgrader makes all missing tables when it opens it.

    A database that is not a file in an existing folder is left alone.
    """
    url = make_url(db_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return
    path = Path(url.database)
    if path.exists() or not path.parent.is_dir():
        return
    from alembic.script import ScriptDirectory  # takes a quarter of a second, and few commands need it

    head = ScriptDirectory(ALEMBIC_DIR).get_current_head()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (head,))
