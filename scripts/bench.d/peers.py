"""Compares workers' own files in a mount with the native directory and with other file systems.

All settings show one store, mounted once, and run the same commands on the same paths. A round runs
one operation in every setting, in a new random order, and then the next operation. Each setting runs
it twice: once at least a second after its last run, and again at once.
"""
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from statistics import median

import table
from place import Wrong

TITLE = "Compared with other file systems"
ROUNDS = 5
NATIVE, SMALL = "native", "open, read, close of each output"
MIB = 1 << 20
READS = 20_000
TURNS = 500  # operations of each of 64 clients
OTHER_FILES = 4  # files of each worker besides its outputs
READER = Path(__file__).with_name("reader.py")
LARGE = Path("workers/large/tool_calls/001_run_command.txt")
PEERS = {
    "bindfs": ["bindfs", "-f", "--multithreaded", "--no-allow-other", "-o", "ro", "STORE"],
    "mergerfs": ["mergerfs", "-f", "-o", "ro", "STORE"],
    "fuse-overlayfs": ["fuse-overlayfs", "-f", "-o", "ro,lowerdir=STORE"],
}
FORGOTTEN = 1.1  # seconds after which a lifetime of a second has passed
LATER, WARM = "after a second", "warm"
NOTE = """\
{workers:,} workers of {files} files with outputs of about {bytes:,} bytes, a third of the workers running; one file
of {large:,} MiB. Native: milliseconds. Others: multiples of the native time of the same round. Each cell is the median
(smallest-largest) of the rounds, after one uncounted round; upcalls are medians. A round runs one operation after the
other, with the settings in shuffled order. "After a second": at least {forgotten} s after the setting's last run. "Warm":
the same once more, at once. What the kernel was told it may keep: swarmletfs, 60 s for finished workers and 1 s for
others; bindfs and mergerfs, 1 s (their defaults); fuse-overlayfs, for ever (its default).
The first four operations run over `workers/worker-*/tool_calls`, named one by one. The large file is read once untimed
before each timed read. The time of the random reads is that of the reads alone. Each of the 64 clients does {turns}
operations and checks the answers: of 95 on average, 60 lookups and stats, 25 reads, and 10 listings of a worker's
directory. The least that any of these can do is the native time, since the kernel can answer alone.
"""
AFTER = """
The reader of small files is a loop in Python. Of the {native:.1f} µs per file in the native directory, at most
{reader:.1f} are its own (that is its time for /dev/null). The other file systems are mounted with

```
{commands}
```
"""


def options(parser, count, _):
    parser.add_argument("--workers", type=count, default=1000)
    parser.add_argument("--files", type=count, default=20, help="of each worker, with the four that are no outputs")
    parser.add_argument("--bytes", type=count, default=4096, help="of each output")
    parser.add_argument("--large", type=count, default=1024, help="of one output of one more worker, in MiB")


def programs(_):
    return [*((peer, peer) for peer in PEERS), ("find", "findutils"), ("ls", "coreutils"), ("grep", "grep"),
            ("rg", "ripgrep"), ("fio", "fio")]


class Command:
    """A command whose output must be equal in every setting: the lines, or at least their number."""

    before = None

    def __init__(self, words, same=sorted):
        self.words, self.same = words, same
        self.fine = (0, 1) if words[0] in ("grep", "rg") else (0,)  # they exit with 1 if nothing is found

    def __call__(self, place, folder):
        took = place.run(self.words, folder, place.output, self.fine)
        return took, self.same(place.output.read_bytes().splitlines())


class Sequential:
    """Reads the large file with cat. An untimed read comes first, since idle pages may leave memory."""

    before = ["cat", LARGE]

    def __call__(self, place, folder):
        return place.run(["cat", LARGE], folder), None


class Random:
    """Random reads of the large file with fio. The time is that of the reads alone."""

    before = ["cat", LARGE]
    words = ["fio", "--name=read", f"--filename={LARGE}", "--readonly", "--rw=randread", "--bs=4k", "--ioengine=psync",
             "--direct=0", "--invalidate=0", f"--number_ios={READS}", "--norandommap", "--randseed=1",
             "--allow_file_create=0", "--output-format=json"]

    def __call__(self, place, folder):
        read = json.loads(place.ask(self.words, folder))["jobs"][0]["read"]
        return read["lat_ns"]["mean"] * read["total_ios"] / 1e9, read["total_ios"]


class Small:
    """Opens, reads and closes every output with several processes."""

    before = None

    def __init__(self, readers, paths):
        self.words = [sys.executable, READER, readers, paths]

    def __call__(self, place, folder):
        told = json.loads(place.ask(self.words, folder))
        return told["seconds"], told["bytes"]


class Crowd:
    """Lookups, stats, reads and listings by 64 clients at once, checked against the made-up swarm."""

    before = None

    def __init__(self, place, asked):
        self.words = [place.load, "read", ".", "--workers", asked.workers, "--calls", asked.files - OTHER_FILES,
                      "--bytes", asked.bytes, "--turns", TURNS]

    def __call__(self, place, folder):
        return float(place.ask(self.words, folder)), None


def operations(place, store, asked):
    """Returns the operations by their names in the table."""
    folders = sorted(str(path.relative_to(store)) for path in store.glob("workers/worker-*/tool_calls"))
    paths = place.new("paths")
    files = sorted(path.relative_to(store) for path in store.glob("workers/worker-*/tool_calls/*"))
    paths.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in files))
    return {
        "`find`": Command(["find", *folders]),
        "`ls -lR`": Command(["ls", "-lR", *folders], same=len),
        "`grep -rc`": Command(["grep", "-rc", "connection refused", *folders]),
        "`rg -c`": Command(["rg", "--no-config", "-uu", "-c", "connection refused", *folders]),
        "`cat` of the large file": Sequential(),
        f"{READS:,} random 4 KiB reads of it": Random(),
        SMALL: Small(1, paths),
        "open, read, close by four readers": Small(4, paths),
        "64 clients": Crowd(place, asked),
    }


def make(place, asked):
    """Creates the store: workers of so many files, and one with a large output of random bytes."""
    if asked.files <= OTHER_FILES:
        raise Wrong(f"--files {asked.files}: four files are not outputs, so give at least {OTHER_FILES + 1}")
    store = place.make(asked.workers, asked.files - OTHER_FILES, asked.bytes)
    large = store / LARGE
    large.parent.mkdir(parents=True)
    record = {"worker_id": "large", "task": "Read a long log", "status": "success"}
    (store / "workers/large/metadata.json").write_text(json.dumps(record), encoding="utf-8")
    dice = random.Random(1)
    with large.open("wb") as file:
        for _ in range(asked.large):
            file.write(dice.randbytes(MIB))
    return store


def mount(place, store):
    """Mounts the store in every setting."""
    mounts = [place.swarmletfs(store)]
    for name, words in PEERS.items():
        mounts.append(place.mount(name, [word.replace("STORE", str(store)) for word in words]))
    for one in mounts:
        place.run(["cmp", store / LARGE, one.point / LARGE])
    return mounts


def one_round(place, store, mounts, doing, ended):
    """Runs every operation in every setting, after a second and again.

    Returns seconds and upcalls by operation, time and setting. `ended` has the end of each setting's last run.
    """
    figures = {}
    for name, operation in doing.items():
        answers = {}
        for one in random.sample([None, *mounts], len(mounts) + 1):
            setting, folder = (one.name, one.point) if one else (NATIVE, store)
            time.sleep(max(0, ended.get(setting, 0) + FORGOTTEN - time.monotonic()))
            for when in (LATER, WARM):
                if operation.before:
                    place.run(operation.before, folder)
                if one:
                    one.counter.begin()
                took, answers[setting, when] = operation(place, folder)
                figures[name, when, setting] = took, one.counter.since() if one else 0
            ended[setting] = time.monotonic()
        for (setting, _), answer in answers.items():
            if answer != answers[NATIVE, WARM]:
                raise Wrong(f"{name}: the output of {setting} differs from that of the native directory")
    return figures


def row(name, when, settings, rounds):
    """Returns the row of an operation: native times, then a ratio and the upcalls of each setting."""
    native = [figures[name, when, NATIVE][0] for figures in rounds]
    cells = [name, table.ms(native)]
    for setting in settings:
        took, upcalls = zip(*(figures[name, when, setting] for figures in rounds))
        cells += [table.spread([one / other for one, other in zip(took, native)]), table.whole(upcalls)]
    return cells


def overhead(place, files):
    """Returns the most time per file, in seconds, that the reader of small files itself takes."""
    nothing = place.new("nothing")
    nothing.write_bytes(b"/dev/null\0" * files)
    return Small(1, nothing)(place, place.folder)[0] / files


def measure(place, asked):
    store = make(place, asked)
    mounts, doing = mount(place, store), operations(place, store, asked)
    ended = {}
    one_round(place, store, mounts, doing, ended)  # warms up
    rounds = [one_round(place, store, mounts, doing, ended) for _ in range(asked.rounds)]
    for one in mounts:
        one.end()
    print(place.upcalls.how() + "\n")
    print(NOTE.format(turns=TURNS, forgotten=FORGOTTEN, **vars(asked)))
    for when in (LATER, WARM):
        heads = [when, "native", *(head for one in mounts for head in (one.name, "upcalls"))]
        print(table.markdown(heads, [row(name, when, [one.name for one in mounts], rounds) for name in doing]) + "\n")
    outputs = asked.workers * (asked.files - OTHER_FILES)
    native = median(figures[SMALL, WARM, NATIVE][0] for figures in rounds) / outputs
    commands = "\n".join(" ".join(words) + " MOUNTPOINT" for words in PEERS.values())
    print(AFTER.format(native=native * 1e6, reader=overhead(place, outputs) * 1e6, commands=commands))
    shutil.rmtree(store)
