"""Fixtures that the doctests share: the module, and a store with one worker that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import swarmletfs


@pytest.fixture(autouse=True)
def doctest_store(request: pytest.FixtureRequest) -> None:
    """Gives doctests the names `swarmletfs` and `store`."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    namespace: dict[str, Any] = request.getfixturevalue("doctest_namespace")
    store = request.getfixturevalue("tmp_path") / "swarm"
    namespace.update(swarmletfs=swarmletfs, store=store)
    swarmletfs.init(store)
    with swarmletfs.Worker.create(store, task="Restore the backup", id="restore") as worker:
        worker.record("pg_restore", "pg_restore: error: No space left on device\n", exit_code=1)
        worker.finish(error="No space left on device")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A new store."""
    path = tmp_path / "swarm"
    swarmletfs.init(path)
    return path
