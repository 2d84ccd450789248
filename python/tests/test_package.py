"""The package: its version, its program, and what it exports."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import swarmletfs
from swarmletfs.__main__ import find_program


def test_versions_are_equal() -> None:
    program = subprocess.run([find_program(), "--version"], capture_output=True, text=True, check=True)
    assert program.stdout == f"swarmletfs {swarmletfs.__version__}\n"
    assert importlib.metadata.version("swarmletfs") == swarmletfs.__version__


def test_the_module_runs_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swarmletfs", "ls", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Usage: swarmletfs ls" in done.stdout


def test_all_public_names_are_documented() -> None:
    for name in swarmletfs.__all__:
        assert name == "__version__" or getattr(swarmletfs, name).__doc__, name


def test_exceptions_have_public_names() -> None:
    assert repr(swarmletfs.NotFound) == "<class 'swarmletfs.NotFound'>"
