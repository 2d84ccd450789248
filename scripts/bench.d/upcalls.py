"""Counts the requests of the kernel that a mount's process answered.

The kernel's tracepoint fuse:fuse_request_end fires once per answer, however the answer was delivered; only
root may use it. Without it, write calls of the process are counted (syscw in /proc/PID/io). That count misses
spliced answers and includes writes to other files. Forgetting an inode has no answer, so neither counts it.
"""
import os
import re
import subprocess
import time
from pathlib import Path

EVENT = "events/fuse/fuse_request_end"
SETTLED = 0.02  # seconds without an answer; the release of a file is answered after its reader continues


class Upcalls:
    """The kernel's trace of file systems, if available."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tracefs", "none", folder]
        self.mounted = os.geteuid() == 0 and run(command)
        self.traced = self.mounted and (folder / EVENT).is_dir()

    def how(self):
        if self.traced:
            return "Upcalls are replies to the kernel, counted by its tracepoint fuse:fuse_request_end."
        return ("Upcalls are write calls of the process (syscw), because the kernel's tracepoint is not available."
                " Spliced replies are missing, such as those of fuse-overlayfs to reads.")

    def of(self, pid, connection):
        """Returns a counter for a mount."""
        return Traced(self.folder, connection) if self.traced else Written(pid)

    def end(self):
        """Removes all rings from the kernel, even if a mount is gone."""
        if self.traced:
            for ring in self.folder.glob(f"instances/{ring_name('*')}"):
                ring.rmdir()
        if self.mounted:
            run(["umount", "-l", self.folder])


def ring_name(connection):
    return f"swarmletfs-bench-{os.getpid()}-{connection}"


def run(command):
    """Returns True if a command succeeds."""
    return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0


class Counter:
    """Counts the answers since a reading."""

    def __init__(self):
        self.before = 0

    def begin(self):
        self.before = self.settled()

    def since(self):
        return self.settled() - self.before

    def settled(self):
        """Returns the count once it is stable, or after a second."""
        count, end = self.count(), time.monotonic() + 1
        while time.monotonic() < end:
            time.sleep(SETTLED)
            last, count = count, self.count()
            if last == count:
                break
        return count

    def count(self):
        raise NotImplementedError

    def end(self):
        pass


class Traced(Counter):
    """A trace ring that holds only the answers of one mount, and counts those it held and overwrote."""

    def __init__(self, folder, connection):
        super().__init__()
        self.ring = folder / "instances" / ring_name(connection)
        self.ring.mkdir()
        (self.ring / EVENT / "filter").write_text(f"connection == {connection}", encoding="ascii")
        (self.ring / EVENT / "enable").write_text("1", encoding="ascii")

    def count(self):
        pages = [page.read_text(encoding="ascii") for page in self.ring.glob("per_cpu/cpu*/stats")]
        return sum(int(number) for page in pages for number in re.findall(r"^(?:entries|overrun): (\d+)", page, re.M))

    def end(self):
        self.ring.rmdir()


class Written(Counter):
    """Counts the write calls of a process."""

    def __init__(self, pid):
        super().__init__()
        self.io = Path(f"/proc/{pid}/io")

    def count(self):
        return int(re.search(r"^syscw: (\d+)", self.io.read_text(encoding="ascii"), re.M)[1])
