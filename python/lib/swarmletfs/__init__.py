"""Reads what a swarm of agents did, and records workers.

>>> with swarmletfs.Worker.create(store, task="Test a restore", id="restore-2") as worker:
...     _ = worker.record("pg_restore", "pg_restore: error: timeout", exit_code=1)
...     worker.finish(error="restore test failed")
>>> view = swarmletfs.open(store)
>>> for worker in view.workers(status="failed"):
...     print(worker.id, worker.info["cause"], sep=": ")
restore-2: exit=1: pg_restore: error: timeout
restore: exit=1: pg_restore: error: No space left on device

docs/PYTHON.md has more.
"""

from __future__ import annotations

from collections.abc import Iterable

from ._errors import Error, Finished, Invalid, NotFound
from ._native import VERSION as __version__
from ._view import Answer, Budget, Changes, Entry, RecordedWorker, StrPath, View
from ._worker import Call, Worker, init

__all__ = [
    "Answer",
    "Budget",
    "Call",
    "Changes",
    "Entry",
    "Error",
    "Finished",
    "Invalid",
    "NotFound",
    "RecordedWorker",
    "View",
    "Worker",
    "__version__",
    "init",
    "open",
]


def open(
    store: StrPath | Iterable[StrPath] | None = None,
    *,
    owner: str | int | None = None,
    run: str | int | None = None,
    max_time: float | None = None,
) -> View:
    """Opens a view of a store, or of several.

    Without `store`, it is the one that the command line would read: that of `$SWARMLET_STORE`, the
    nearest one from the current folder upwards, or the sessions of known agent programs. With
    `owner` and `run`, nothing else exists in the view. `max_time` is the longest time in seconds
    that a generated text may take; it then says what is missing.
    """
    return View(store, owner=owner, run=run, max_time=max_time)
