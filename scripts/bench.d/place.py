"""A temporary directory with the stores, mounts and processes of a benchmark, and their cleanup.

Nothing waits forever. If something takes too long, the serving processes are killed, so that the kernel
answers the waiting requests, and then the command itself.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import upcalls

WITHIN = 600.0  # longest time of a command, in seconds
MOUNTED_WITHIN = 120.0  # longest time to mount, in seconds
ENDED_WITHIN = 20.0  # longest time for a process to end after its mount is gone, in seconds
READY = "mounted on"  # printed by swarmletfs when its mount answers
TROUBLE = re.compile(" WARN | ERROR |panicked")


class Wrong(Exception):
    """A command that failed or took too long, or a wrong answer."""


class Place:
    """A directory in $TMPDIR, and everything that was started in it."""

    def __init__(self, built):
        self.program = built / "swarmletfs"
        self.load = built / "examples/load"
        self.folder = Path(tempfile.mkdtemp(prefix="swarmletfs-bench.")).resolve()
        self.output = self.folder / "output"
        self.mounts, self.commands, self.made = [], [], 0
        self.upcalls = upcalls.Upcalls(self.folder / "tracing")

    def new(self, name):
        """Returns an unused path in the directory."""
        self.made += 1
        return self.folder / f"{self.made}-{name.replace(' ', '-')}"

    def make(self, workers, calls, size):
        """Creates a made-up swarm with outputs of about so many bytes. Returns its store."""
        store = self.new("store")
        self.run([self.load, "make", "--workers", workers, "--calls", calls, "--bytes", size, store])
        return store

    @contextmanager
    def in_time(self, seconds, what):
        """Fails if its body takes longer."""
        late = threading.Event()

        def give_up():
            late.set()
            for mount in self.mounts:
                mount.process.kill()
            for command in self.commands:
                os.killpg(command.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except OSError:
            if not late.is_set():
                raise
        finally:
            timer.cancel()
        if late.is_set():
            raise Wrong(f"not within {seconds:g} s: {what}")

    def run(self, command, cwd=None, output=None, fine=(0,), within=WITHIN):
        """Runs a command in a directory, with its output to a file or nowhere. Returns the seconds."""
        words = [str(word) for word in command]
        shown = " ".join(words[:12]) + (f" … ({len(words)} words)" if len(words) > 12 else "")
        errors = self.folder / "errors"
        with open(output or os.devnull, "wb") as out, open(errors, "wb") as err, self.in_time(within, shown):
            began = time.perf_counter()
            process = subprocess.Popen(words, cwd=cwd or self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       start_new_session=True)
            self.commands.append(process)
            try:
                process.wait()
                took = time.perf_counter() - began
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                self.commands.remove(process)
        said = errors.read_text(encoding="utf-8", errors="replace")
        # A tool that could not read something may still exit with success, or as if nothing had been found.
        if process.returncode not in fine or said:
            raise Wrong(f"{shown}: exit code {process.returncode}: {said}")
        return took

    def ask(self, command, cwd=None, fine=(0,)):
        """Runs a command and returns its output."""
        self.run(command, cwd, self.output, fine)
        return self.output.read_bytes()

    def until(self, what, shows, pause=0.0):
        """Checks until the condition holds."""
        with self.in_time(WITHIN, f"waiting for {what}"):
            while not shows():
                time.sleep(pause)

    def mount(self, name, command, cache=None, ready=None):
        """Mounts with a command that stays in the foreground, followed by the mountpoint."""
        return Mount(self, name, command, cache or self.new("cache"), ready)

    def swarmletfs(self, store, cache=None):
        """Mounts a store; without a cache directory, with a new, empty one."""
        return self.mount("swarmletfs", [self.program, "mount", "--foreground", "--store", store], cache, READY)

    def end(self):
        """Ends all processes and mounts, and removes the directory unless something is still mounted in it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for mount in list(self.mounts):
            mount.give_up()
        self.upcalls.end()
        if not [point for point in mounts() if Path(point).is_relative_to(self.folder)]:
            shutil.rmtree(self.folder)


class Mount:
    """A mountpoint and the process that serves it."""

    def __init__(self, place, name, command, cache, ready):
        self.place, self.name = place, name
        self.point, self.log = place.new(name), place.new("log")
        self.point.mkdir()
        environment = dict(os.environ, XDG_CACHE_HOME=str(cache))
        words = [str(word) for word in [*command, self.point]]
        with open(self.log, "wb") as log:
            began = time.perf_counter()
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                            start_new_session=True)
        place.mounts.append(self)
        while not self.answers(ready):
            if self.process.poll() is not None:
                raise Wrong(f"{' '.join(words)}: exit code {self.process.returncode}: {self.said()}")
            if time.perf_counter() - began > MOUNTED_WITHIN:
                raise Wrong(f"not within {MOUNTED_WITHIN:g} s: {' '.join(words)}: {self.said()}")
            time.sleep(0.0005)
        self.seconds = time.perf_counter() - began
        self.counter = place.upcalls.of(self.process.pid, mounts()[str(self.point)])

    def answers(self, ready):
        """Returns True if it is mounted and has reported that, if it does."""
        return (ready is None or ready in self.said()) and str(self.point) in mounts()

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def memory(self, key):
        """Returns VmRSS or VmHWM of the process, in KiB."""
        return status(self.process.pid, key)

    def end(self):
        """Unmounts, and waits for the process to end. It must have reported no trouble."""
        self.counter.end()
        self.place.run([*unmounter(), self.point], within=ENDED_WITHIN)
        try:
            code = self.process.wait(ENDED_WITHIN)
        except subprocess.TimeoutExpired as late:
            raise Wrong(f"{self.name} goes on without its mount") from late
        self.place.mounts.remove(self)
        trouble = [line for line in self.said().splitlines() if TROUBLE.search(line)]
        if code or trouble:
            raise Wrong(f"{self.name}: exit code {code}: {' '.join(trouble) or self.said()}")

    def give_up(self):
        """Ends the process and its mount by force."""
        self.process.kill()
        try:
            if str(self.point) in mounts():
                subprocess.run([*unmounter(lazily=True), self.point], timeout=ENDED_WITHIN, check=False)
            self.process.wait(ENDED_WITHIN)
        except subprocess.TimeoutExpired as late:
            print(f"scripts/bench: {self.point} is left: {late}", file=sys.stderr)


def unmounter(lazily=False):
    """Returns the command that unmounts."""
    if os.geteuid() == 0:
        return ["umount", "-l"] if lazily else ["umount"]
    return ["fusermount3", "-uz" if lazily else "-u"]


def mounts():
    """Maps each mountpoint to the minor device number, which is the number of the FUSE connection."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return {line.split()[4]: line.split()[2].partition(":")[2] for line in table}


def status(pid, key):
    """Returns a figure of a process, in KiB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE)[1])
