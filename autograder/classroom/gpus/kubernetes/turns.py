"""A learner's changes, one after the other: what a change has checked still holds when it reaches the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator


class TooMany(Exception):
    """This learner has the maximum number of changes waiting already."""


class Turns:
    """A queue of changes for each user."""

    def __init__(self, most: int) -> None:
        """most: changes of one learner that wait or are made. Each may have a body of a megabyte."""
        self._most = most
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._begun: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Wait until all earlier changes of a user's are made. Raises `TooMany`."""
        if self._begun[user] >= self._most:
            raise TooMany
        self._begun[user] += 1
        try:
            async with self._locks[user]:
                yield
        finally:
            self._begun[user] -= 1
