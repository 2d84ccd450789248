"""Reads everything that a mount shows, twice, and compares with the store's directory where possible.

"first" is the first run in a new mount with an empty cache; "again" repeats it at once.
"""
import shutil
from dataclasses import dataclass
from pathlib import Path

import table

TITLE = "The whole mount"
ROUNDS = 5
SMALL = {"calls": 16, "size": 4096}  # with four more files: 20 files per worker
HEADS = ["", "directory, ms", "first, ms", "again, ms", "upcalls first", "again", "peak RSS, MiB"]
NOTE = """\
Milliseconds, the median (smallest-largest) of the rounds. "first" is the first run in a new mount with an empty cache;
"again" repeats it at once. The column "directory" runs the same command, where there is one, over the store's own
files alone; they were just written, so they are in memory. The peak is that of a mount that ran only this command. All
times include starting a command: `true` takes {nothing} ms.
"""


def options(parser, count, _):
    parser.add_argument("--workers", type=count, default=1000)
    parser.add_argument("--many", type=count, default=10_000, help="workers whose lists are read")


def programs(_):
    return [("find", "findutils"), ("ls", "coreutils"), ("grep", "grep"), ("rg", "ripgrep")]


@dataclass
class Row:
    """A command in the mount and its equivalent in the directory: the same, another one, or none."""

    name: str
    mount: list
    folder: list | None = None
    before: object = None  # action in the mount before the first run


def same(name, words):
    return Row(name, words, words)


def timed(place, command, folder):
    """Runs a command. Returns the seconds."""
    # grep stops at the first match if its output is discarded; grep and rg exit with 1 if nothing is found.
    output = place.output if command[0] == "grep" else None
    return place.run(command, folder, output, fine=(0, 1) if command[0] in ("grep", "rg") else (0,))


def one_round(place, store, row):
    """Measures a row once: seconds in the directory, first and again, their upcalls, and peak memory in KiB."""
    native = timed(place, row.folder, store) if row.folder else None
    mount = place.swarmletfs(store)
    if row.before:
        row.before(place, mount.point)
    took, upcalls = [], []
    for _ in range(2):
        mount.counter.begin()
        took.append(timed(place, row.mount, mount.point))
        upcalls.append(mount.counter.since())
    figures = native, *took, *upcalls, mount.memory("VmHWM"), mount.seconds
    mount.end()
    return figures


def section(place, store, title, rows, rounds):
    """Measures a table of rows and prints it."""
    print(f"### {title}\n")
    cells, mounting = [], []
    for row in rows:
        figures = [one_round(place, store, row) for _ in range(rounds)]
        native, first, again, asked, asked_again, peak, mounted = zip(*figures)
        mounting += mounted
        cells.append([row.name, table.ms(native) if row.folder else "", table.ms(first), table.ms(again),
                      table.whole(asked), table.whole(asked_again), table.spread([one / 1024 for one in peak], 1)])
    print(table.markdown(HEADS, [["mount", "", table.ms(mounting), "", "", "", ""], *cells]) + "\n", flush=True)


def swarm(place, asked):
    """Reads a whole swarm of 20 files per worker; then measures the memory of one mount that ran everything."""
    store = place.make(asked.workers, **SMALL)
    workers = sorted(path.name for path in (store / "workers").glob("worker-*"))
    rows = [
        same("`ls workers`", ["ls", "workers"]),
        same("`stat` of every worker", ["stat", "-c", "%Y", *(f"workers/{worker}" for worker in workers)]),
        same("`find .`", ["find", "."]),
        same("`ls -lR workers`", ["ls", "-lR", "workers"]),
        same("`grep -rc` over everything", ["grep", "-rc", "connection refused", "."]),
        Row("`index.json`", ["cat", "index.json"]),
        Row("`summary`", ["cat", "summary"]),
        Row("`evidence.txt` of the swarm", ["cat", "evidence.txt"]),
        Row("`evidence.txt` of each worker", ["cat", *(f"workers/{worker}/evidence.txt" for worker in workers)]),
        Row("`ls by/status/completed`", ["ls", "by/status/completed"]),
    ]
    section(place, store, f"{asked.workers:,} workers of 20 files", rows, asked.rounds)
    mount = place.swarmletfs(store)
    for row in rows:
        timed(place, row.mount, mount.point)
    found = [len(place.ask(["find", "."], folder).splitlines()) for folder in (mount.point, store)]
    index = (mount.point / "index.json").stat().st_size
    end, peak = (mount.memory(key) / 1024 for key in ("VmRSS", "VmHWM"))
    print(f"`find .` names {found[0]:,} files and directories in the mount and {found[1]:,} in the directory;"
          f" index.json has {index:,} bytes. One mount that ran all of this: RSS {end:.1f} MiB at the end,"
          f" {peak:.1f} MiB at its peak.\n")
    mount.end()
    shutil.rmtree(store)


def lists(place, asked):
    """Lists the workers of a large swarm in several ways."""
    store = place.make(asked.many, 1, 300)
    workers = sorted(f"workers/{path.name}" for path in (store / "workers").glob("worker-*"))
    listed = ["by/status/completed", "by/type", "by/outcome/failed"]
    rows = [
        same("`ls workers`", ["ls", "workers"]),
        same("`stat` of every worker", ["stat", "-c", "%Y", *workers]),
        Row("`index.json`", ["cat", "index.json"]),
        *(Row(f"`ls {folder}`", ["ls", folder]) for folder in listed),
        Row("`ls -l by/status/completed`", ["ls", "-l", "by/status/completed"]),
    ]
    section(place, store, f"{asked.many:,} workers of 5 files", rows, asked.rounds)
    shutil.rmtree(store)


def questions(place, asked):
    """Searches for regexes and words in outputs of 20 KiB, five per worker; in the directory, ripgrep does."""
    store = place.make(asked.workers, 5, 20_480)
    # Reads everything once, so that it is in memory.
    place.run(["grep", "-rc", "nothing of it", "."], store, place.output, fine=(1,))

    ripgrep = ["rg", "--no-config", "-n", "--no-heading"]

    def regex(name, pattern, before=None):
        return Row(name, ["cat", f"grep/{pattern}"], [*ripgrep, "-e", pattern, "."], before)

    def words(name, query, before=None):
        return Row(name, ["cat", f"search/{query}"], [*ripgrep, "-w", query.split()[0], "."], before)

    rows = [
        regex("`grep/`: no line matches", "no such word"),
        regex("`grep/`: no line matches, after another regex", "no such word", another_regex),
        regex("`grep/`: many match", "connection refused"),
        regex("`grep/`: many match, after a character class", r"\w+ion [a-z]+ed"),
        words("`search/`: nothing indexed yet", "refused quota"),
        words("`search/`: rare words, all indexed", "refused quota", all_read),
        words("`search/`: common words, all indexed", "connection error test", all_read),
    ]
    size = asked.workers * 5 * 20_480 / 1e6
    section(place, store, f"Queries over {size:.0f} MB of {asked.workers:,} workers", rows, asked.rounds)
    print("In the directory, ripgrep runs. It prints all lines, and of several words it searches for the first; `grep/`"
          " and `search/` answer within 28,000 bytes.\n")
    shutil.rmtree(store)


def another_regex(place, point):
    """Searches for a regex once."""
    place.ask(["cat", "grep/nothing of it"], point)


def all_read(place, point):
    """Searches until the answer is complete."""
    place.until("search/ to read all", lambda: b"lack of time" not in place.ask(["cat", "search/nothing yet"], point))


def evidence(place, asked):
    """Reads the generated files of a single worker."""
    worker = Path("workers/worker-00000")
    shapes = {"A worker of 20 calls of 20 KiB": (20, 20_480), "A worker of one call of 66 MB": (1, 66_000_000)}
    for title, (calls, size) in shapes.items():
        store = place.make(1, calls, size)
        outputs = [str(path.relative_to(store)) for path in sorted((store / worker / "tool_calls").iterdir())]
        rows = [
            Row("`evidence.txt`", ["cat", worker / "evidence.txt"]),
            Row("`index.json`", ["cat", worker / "index.json"]),
            same("`cat` of its outputs", ["cat", *outputs]),
        ]
        section(place, store, title, rows, asked.rounds)
        shutil.rmtree(store)


def measure(place, asked):
    print(place.upcalls.how() + "\n")
    print(NOTE.format(nothing=table.ms([place.run(["true"]) for _ in range(20)])))
    for part in (swarm, lists, questions, evidence):
        part(place, asked)
