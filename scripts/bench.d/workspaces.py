"""Commands in a view of a workspace (`run`) beside the plain folder, a git worktree and fuse-overlayfs.

A round measures every way once, in a new random order. A command inside of a view is timed inside, so that the start
of the view does not count.
"""
import os
import random
import shlex
import shutil
import subprocess
import sys
import time

import table
from place import Wrong
from rounds import rounds_of

TITLE = "Workspaces"
ROUNDS = 5
FILES_OF_A_FOLDER = 100
TIMER = """\
import subprocess, sys, time
began = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)
print(time.perf_counter() - began)
"""
# Goals as multiples of the time outside.
COMMANDS = [
    ("git status", ["git", "status", "--porcelain"], 1.5),
    ("find", ["find", ".", "-name", "nothing"], 1.15),
    ("grep -r", ["grep", "-rc", "--include=*.txt", "line 1", "."], 2.0),
    ("a build: cargo build", ["cargo", "build", "--quiet", "--offline", "--manifest-path", "crate/Cargo.toml",
                              "--target-dir", "crate/target"], 1.05),
]
NOTE = """\
A repository of {files:,} files in {folders:,} folders, and a crate of {modules} modules without dependencies.
"""
START_NOTE = """\
Milliseconds to make a view and to remove it: the median (smallest-largest) of the rounds. `run` also records the
worker: it creates it, searches for changes, and finishes it.
"""
INSIDE_NOTE = """\
The time inside, as multiples of the time in the plain folder in the same round. Each command runs once before it is
timed, except for the build, which begins without a target folder.
"""
DISK_NOTE = """\
{workers} workers at once on one workspace; each edits a file, asks for the status, and commits. Seconds for all of them, and
MiB of disk that their views take.
"""
PLAIN, RUN, WORKTREE, FUSE = "plain folder", "`run`", "git worktree", "fuse-overlayfs"


def options(parser, count, _):
    parser.add_argument("--files", type=count, default=20_000, help="of the repository")
    parser.add_argument("--modules", type=count, default=60, help="of the crate that is built")
    parser.add_argument("--workers", type=count, default=10, help="at once on one workspace")


def programs(_):
    return [("git", "git"), ("find", "findutils"), ("grep", "grep"), ("cargo", "cargo"),
            ("fuse-overlayfs", "fuse-overlayfs")]


def git(place, folder, *words):
    place.run(["git", "-C", folder, "-c", "user.name=bench", "-c", "user.email=bench@localhost",
               "-c", "advice.detachedHead=false", *words])


def repository(place, asked):
    """Makes the repository and returns its path."""
    root = place.new("repository")
    for number in range(asked.files):
        folder = root / f"folder-{number // FILES_OF_A_FOLDER:03}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file-{number:05}.txt").write_text(f"line {number}\n" * random.randint(1, 400), encoding="utf-8")
    source = root / "crate" / "src"
    source.mkdir(parents=True)
    (source.parent / "Cargo.toml").write_text('[package]\nname = "built"\nversion = "0.1.0"\nedition = "2021"\n'
                                              "[workspace]\n", encoding="utf-8")
    for number in range(asked.modules):
        body = "\n".join(f"pub fn f{n}(x: u64) -> Vec<String> {{ (0..x).map(|y| format!(\"{{}}\", y * {n})).collect() }}"
                         for n in range(40))
        (source / f"m{number}.rs").write_text(body, encoding="utf-8")
    (source / "lib.rs").write_text("".join(f"pub mod m{n};\n" for n in range(asked.modules)), encoding="utf-8")
    (root / ".gitignore").write_text("target\n", encoding="utf-8")
    git(place, root, "init", "--quiet")
    git(place, root, "add", ".")
    git(place, root, "commit", "--quiet", "--message", "Begin")
    return root


class Views:
    """The ways to give a command a view of the repository."""

    def __init__(self, place, root):
        self.place, self.root = place, root
        self.store = place.new("store")
        place.run([place.program, "init", self.store])

    def run(self, words, output=None):
        """Runs a command in a view of `run`."""
        command = [self.place.program, "run", "--quiet", "--no-sync", "--store", self.store, "--workspace", self.root,
                   "--task", "bench", "--", *words]
        return self.place.run(command, cwd=self.root, output=output)

    def worktree(self):
        """Makes a git worktree. Returns its path and what removes it."""
        path = self.place.new("worktree")
        git(self.place, self.root, "worktree", "add", "--quiet", "--detach", path)
        return path, lambda: git(self.place, self.root, "worktree", "remove", "--force", path)

    def fuse(self):
        """Mounts fuse-overlayfs. Returns its mountpoint and what unmounts it."""
        base = self.place.new("fuse")
        upper, work, point = base / "upper", base / "work", base / "point"
        for folder in (upper, work, point):
            folder.mkdir(parents=True)
        layers = f"lowerdir={self.root},upperdir={upper},workdir={work}"
        # It says on stderr which options of mount it ignores.
        self.place.run(["sh", "-c", shlex.join(["fuse-overlayfs", "-o", layers, str(point)]) + " 2>/dev/null"])
        return point, lambda: self.place.run(["umount" if os.geteuid() == 0 else "fusermount3",
                                              *([] if os.geteuid() == 0 else ["-u"]), point])

    def drop_store(self):
        shutil.rmtree(self.store)
        self.place.run([self.place.program, "init", self.store])


def start(place, asked, views):
    def made(make):
        began = time.perf_counter()
        path, remove = make()
        place.run(["true"], cwd=path)
        remove()
        return time.perf_counter() - began

    ways = {
        PLAIN: lambda: place.run(["true"], cwd=views.root),
        RUN: lambda: views.run(["true"]),
        WORKTREE: lambda: made(views.worktree),
        FUSE: lambda: made(views.fuse),
    }
    figures = rounds_of(ways, asked.rounds * 2)
    rows = [[name, table.ms(took)] for name, took in figures.items()]
    print(f"### The start of a view\n\n{START_NOTE}")
    print(table.markdown(["`true` in", "ms"], rows) + "\n", flush=True)


def timed(place, cwd, words):
    """Returns the seconds of a command in a directory."""
    return float(place.ask([sys.executable, "-c", TIMER, *words], cwd=cwd))


def inside(place, asked, views):
    rows = []
    for name, words, goal in COMMANDS:
        builds = "build" in name
        warm = [] if builds else [words]

        def in_folder(make, words=words, warm=warm, builds=builds):
            path, remove = make()
            if builds:
                shutil.rmtree(path / "crate" / "target", ignore_errors=True)
            for once in warm:
                place.run(once, cwd=path, output=place.output)
            took = timed(place, path, words)
            if builds:
                shutil.rmtree(path / "crate" / "target", ignore_errors=True)
            remove()
            return took

        def in_run(words=words, warm=warm):
            script = place.new("script")
            script.write_text(TIMER if not warm else "import subprocess, sys\n"
                              "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n" + TIMER,
                              encoding="utf-8")
            views.run([sys.executable, "-c", script.read_text(encoding="utf-8"), *words], output=place.output)
            return float(place.output.read_text(encoding="utf-8"))

        ways = {
            PLAIN: lambda in_folder=in_folder: in_folder(lambda: (views.root, lambda: None)),
            RUN: in_run,
            WORKTREE: lambda in_folder=in_folder: in_folder(views.worktree),
            FUSE: lambda in_folder=in_folder: in_folder(views.fuse),
        }
        figures = rounds_of(ways, asked.rounds)
        ratios = {way: [one / plain for one, plain in zip(took, figures[PLAIN])] for way, took in figures.items()}
        rows.append([f"`{name}`" if not builds else name, table.ms(figures[PLAIN]),
                     *(table.spread(ratios[way]) for way in (RUN, WORKTREE, FUSE)), f"{goal:.2f}"])
        views.drop_store()
    print(f"### Commands in a view\n\n{INSIDE_NOTE}")
    print(table.markdown(["", f"{PLAIN}, ms", RUN, WORKTREE, FUSE, f"goal of {RUN}"], rows) + "\n", flush=True)


def disk(place, path):
    """Returns the MiB that a directory takes."""
    return int(place.ask(["du", "-sxk", path]).split()[0]) / 1024


def many(place, asked, views):
    edit = ("echo edited >> folder-000/file-00000.txt && git status --porcelain > /dev/null && "
            "git -c user.name=bench -c user.email=bench@localhost commit --quiet --all --message Edit")

    def at_once(commands, cwds):
        began = time.perf_counter()
        started = [subprocess.Popen([str(word) for word in command], cwd=cwd, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                   for command, cwd in zip(commands, cwds)]
        for process in started:
            _, said = process.communicate(timeout=600)
            if process.returncode:
                raise Wrong(f"exit code {process.returncode}: {said.decode(errors='replace')}")
        return time.perf_counter() - began

    run = [place.program, "run", "--quiet", "--no-sync", "--store", views.store, "--workspace", views.root,
           "--task", "bench", "--", "sh", "-c", edit]
    took = at_once([run] * asked.workers, [views.root] * asked.workers)
    rows = [[RUN, f"{took:.1f}", f"{disk(place, views.store):,.1f}"]]
    before = disk(place, views.root / ".git")
    began = time.perf_counter()
    trees = [views.worktree() for _ in range(asked.workers)]
    made = time.perf_counter() - began
    took = at_once([["sh", "-c", edit]] * asked.workers, [path for path, _ in trees])
    used = sum(disk(place, path) for path, _ in trees) + disk(place, views.root / ".git") - before
    rows.append([WORKTREE, f"{made + took:.1f}", f"{used:,.1f}"])
    for _, remove in trees:
        remove()
    print(f"### Workers at once\n\n{DISK_NOTE.format(workers=asked.workers)}")
    print(table.markdown(["", "seconds", "MiB"], rows) + "\n", flush=True)


def measure(place, asked):
    root = repository(place, asked)
    folders = -(-asked.files // FILES_OF_A_FOLDER)
    print(NOTE.format(files=asked.files, folders=folders, modules=asked.modules))
    views = Views(place, root)
    start(place, asked, views)
    inside(place, asked, views)
    many(place, asked, views)
