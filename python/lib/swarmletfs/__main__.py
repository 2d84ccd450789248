"""Runs the program `swarmletfs`: `python -m swarmletfs`."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


def find_program() -> str:
    """Returns the path of the program that was installed with the package."""
    schemes = [sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")]
    folders = [Path(sysconfig.get_path("scripts", scheme)) for scheme in schemes]
    # `pip install --target` has a folder of its own.
    folders.append(Path(__file__).parent.parent / "bin")
    for folder in folders:
        if (folder / "swarmletfs").is_file():
            return str(folder / "swarmletfs")
    sys.exit("swarmletfs: the program was not installed with the package; try `pip install --force-reinstall swarmletfs`")


if __name__ == "__main__":
    program = find_program()
    os.execv(program, ["swarmletfs", *sys.argv[1:]])
