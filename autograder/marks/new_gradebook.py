"""A new gradebook. By itself nbgrader starts a command, which takes seconds, to ask which version its tables have."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from nbgrader.dbutil import ALEMBIC_DIR
from sqlalchemy import make_url


def begin(db_url: str) -> None:
    """Write the version where there is no gradebook yet; nbgrader makes all tables that are missing when it opens it.

    Of a database that is no file in a folder that stands, nothing is touched.
    """
    url = make_url(db_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return
    path = Path(url.database)
    if path.exists() or not path.parent.is_dir():
        return
    from alembic.script import ScriptDirectory  # a quarter of a second, which few commands need

    head = ScriptDirectory(ALEMBIC_DIR).get_current_head()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (head,))
