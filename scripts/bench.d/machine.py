"""Describes the machine, and installs and builds the programs of a benchmark."""
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from place import Wrong


def need(programs):
    """Installs missing programs if possible. Programs are pairs of a command and its Debian package."""
    missing = sorted({package for command, package in programs if not shutil.which(command)})
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Wrong(f"missing: {' '.join(missing)}. To get them: sudo apt-get install {' '.join(missing)}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", "-qq", *words], env=environment, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=900, check=False)
        if done.returncode:
            raise Wrong(f"apt-get {' '.join(words)}: {done.stdout}{done.stderr}")


def build():
    """Builds the program and the load, and returns their directory."""
    command = ["cargo", "build", "--release", "--bin", "swarmletfs", "--example", "load"]
    done = subprocess.run(command + ["--message-format", "json-render-diagnostics"], stdout=subprocess.PIPE,
                          timeout=3600, check=False)
    if done.returncode:
        raise Wrong(f"{' '.join(command)}: exit code {done.returncode}")
    made = [json.loads(line) for line in done.stdout.splitlines()]
    paths = {one["target"]["name"]: one["executable"] for one in made if one.get("executable")}
    return Path(paths["swarmletfs"]).parent


def describe(place, programs):
    """Describes the machine and the versions of the programs, in two lines."""
    commands = [place.program, *(command for command, _ in programs)]
    versions = ", ".join(version(place, command) for command in commands)
    kind = place.ask(["df", "--output=fstype", "."]).decode().split()[-1]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (f"{processor()}, {os.cpu_count()} processors, {memory:.0f} GiB of memory, Linux {platform.release()},"
            f" the files on {kind}.\n"
            f"{versions}, Python {platform.python_version()}.\n")


def processor():
    """Returns the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def version(place, command):
    """Returns a program's version line: the first line that names the program, otherwise the first."""
    done = subprocess.run([command, "--version"], cwd=place.folder, capture_output=True, text=True, timeout=20,
                          check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise Wrong(f"{command} --version: exit code {done.returncode}: {done.stdout}{done.stderr}")
    named = [line for line in lines if Path(command).name in line]
    return (named or lines)[0].strip()


if sys.platform != "linux":
    raise SystemExit("scripts/bench: it measures FUSE in Linux")
