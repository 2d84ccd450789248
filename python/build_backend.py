"""Builds wheels with maturin, and puts the program `swarmletfs` among their scripts.

maturin builds the module or the programs of a crate, not both. The program starts itself again
(to serve a mount, and behind the walls of `run`), so it cannot be a function of the module. This
backend builds it with Cargo and lets maturin do everything else.

$SWARMLETFS_PROGRAM names a program that is already built. maturin itself can be used after
`python build_backend.py`, which only puts the program in its place.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent
PROGRAM = "swarmletfs"
SCRIPTS = ROOT / "data" / "scripts"

get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    # maturin requires the folder, whatever is in it.
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return str(maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return str(maturin.build_sdist(sdist_directory, config_settings))


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    provide_program(config_settings)
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    provide_program(config_settings)
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def provide_program(config_settings: Mapping[str, Any] | None) -> None:
    """Puts the program where maturin finds the scripts of the wheel."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    given = os.environ.get("SWARMLETFS_PROGRAM")
    program = Path(given) if given else build_program(profile(config_settings))
    # Renamed into place, so that a program that runs keeps its file.
    copy = SCRIPTS / f".{PROGRAM}.{os.getpid()}"
    shutil.copy2(program, copy)
    copy.replace(SCRIPTS / PROGRAM)


def profile(config_settings: Mapping[str, Any] | None) -> str:
    """Returns the profile that maturin builds the module with."""
    given = (config_settings or {}).get("build-args", os.environ.get("MATURIN_PEP517_ARGS", ""))
    arguments = shlex.split(given) if isinstance(given, str) else list(given)
    for argument, value in zip(arguments, [*arguments[1:], ""]):
        if argument == "--profile":
            return str(value)
        if argument.startswith("--profile="):
            return str(argument.partition("=")[2])
    return "release"


def build_program(name: str) -> Path:
    """Builds the program and returns its path."""
    # In a source distribution, the crate of the program is in the same folder.
    command = ["cargo", "build", "--locked", "--manifest-path", str(ROOT / "Cargo.toml"), "--package", PROGRAM]
    # With the module's features, so that maturin finds all but the module built.
    command += ["--package", "swarmletfs-python"]
    command += ["--bin", PROGRAM, "--profile", name, "--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == PROGRAM:
            return Path(message["executable"])
    raise RuntimeError("cargo reported no program")


if __name__ == "__main__":
    provide_program(None)
