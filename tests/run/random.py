"""Changes the current directory at random: `random.py SEED STEPS [closed]`. Prints every entry beneath it afterwards as a line of JSON: [path, type, mode, content], with the path and the target of a link in hex, and the SHA-256 of a file. With `closed`, entries may lose the rights of their owner."""

import errno
import hashlib
import json
import os
import random
import shutil
import stat
import sys

rng = random.Random(int(sys.argv[1]))
STEPS = int(sys.argv[2])
CLOSED = sys.argv[3:] == ["closed"]
NAMES = [b"a", b"a", b"b", b"b", b"c d", b"src", "\u00e9".encode(), b"-rf", b"\xff\xfe", b"n\nl", b"q\"'", b"$(id)",
         b"tab\t", b"back\\slash", b"\x1b[31m", b"...", b" ", b"changes", b"base", b"#c", b"l" * 255, b"applied"]
TARGETS = [b"gone/a", b"../z", b".", b"nowhere", b"/etc/hostname", b"\xff", b"two\nlines", b"x y", b"x/" * 400]
LINES = [b"one\n", b"two\n", b"\n", b"crlf\r\n", b"--- a/a\n", b"+++ b/a\n", b"@@ -1 +1 @@\n", b"\\ No newline at end of file\n",
         b"diff --git a/a b/a\n", b"\tindented\n", b"trailing \n", b"\r", "\u202eword\n".encode()]
FILE_MODES = [0o644, 0o755, 0o600, 0o444, 0o700, 0o640, 0o777, 0o666, 0o501, 0o400]
FOLDER_MODES = [0o755, 0o700, 0o555, 0o750, 0o777, 0o500]
CLOSED_MODES = [0, 0o200, 0o077]


def text():
    return b"".join(rng.choice(LINES) for _ in range(rng.randrange(30)))


def huge():
    """Returns a content near or above the limits of a diff."""
    kind = rng.randrange(3)
    if kind == 0:
        lines = text() + b"line\n"
        return lines * (2_000_000 // len(lines))
    if kind == 1:
        return rng.randbytes(rng.choice([1_000_000, 1_100_000]))
    return b"one line\n" * 2_000_000


def content():
    if rng.randrange(120) == 0:
        return huge()
    kind = rng.randrange(10)
    if kind == 0:
        return b""
    if kind == 1:
        return rng.randbytes(rng.randrange(1, 600))
    if kind == 2:
        return b"caf\xe9\n" * rng.randrange(1, 4)
    if kind == 3:
        return b"long line " * rng.randrange(20_000)
    if kind == 4:
        return rng.randbytes(rng.randrange(300)) * rng.randrange(300)
    if kind == 5:
        return text().replace(b"\n", b"\r\n")
    if kind == 6:
        return text() + b"no newline at the end"
    return text()


def path():
    return b"/".join(rng.choice(NAMES) for _ in range(rng.choice([1, 1, 2, 2, 3, 4])))


def known():
    """Returns the path of an entry, if there is one."""
    paths = [os.path.join(folder, name)[2:] for folder, folders, files in os.walk(b".") for name in folders + files]
    return rng.choice(sorted(paths)) if paths else path()


def is_folder(path):
    return stat.S_ISDIR(os.lstat(path).st_mode)


def remove(path):
    if is_folder(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def write(path, content, mode="wb"):
    # Links are not followed: they may lead to another machine's files.
    if os.path.islink(path):
        os.unlink(path)
    with open(path, mode) as file:
        file.write(content)


def write_new():
    target = path()
    os.makedirs(os.path.dirname(target) or b".", exist_ok=True)
    write(target, content())


def edit_lines():
    target = known()
    with open(target, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines) + 1)
        if rng.random() < 0.5:
            lines.insert(at, rng.choice(LINES))
        else:
            del lines[at:at + 1]
    write(target, b"".join(lines))


def convert():
    target = known()
    with open(target, "rb") as file:
        old = file.read()
    write(target, rng.choice([old.replace(b"\r\n", b"\n"), old.replace(b"\n", b"\r\n"), old.rstrip(b"\n"), old + b"\n"]))


def replace_safely():
    """Replaces a file as editors do: by a new one that is renamed."""
    target = known()
    if not is_folder(target):
        write(b".new", content())
        os.rename(b".new", target)


def append():
    write(known(), rng.choice(LINES), "ab")


def resize():
    target = known()
    if not os.path.islink(target):
        os.truncate(target, rng.choice([0, 1, 10, 100_000]))


def rename():
    old, new = known(), rng.choice([path, known])()
    os.makedirs(os.path.dirname(new) or b".", exist_ok=True)
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # As between file systems, for a folder of the workspace.
        shutil.copytree(old, new, symlinks=True)
        shutil.rmtree(old)


def change_mode():
    target = known()
    if not os.path.islink(target):
        modes = FOLDER_MODES if is_folder(target) else FILE_MODES
        os.chmod(target, rng.choice(modes + (CLOSED_MODES if CLOSED else [])))


def replace_by_another_kind():
    target = known()
    was_folder = is_folder(target)
    remove(target)
    kind = rng.randrange(4)
    if kind == 0:
        os.symlink(rng.choice(TARGETS), target)
    elif kind == 1 or was_folder:
        write(target, content())
    else:
        os.mkdir(target)
        write(target + b"/" + rng.choice(NAMES), content())


def link():
    target = path()
    if os.path.lexists(target):
        remove(target)
    os.symlink(rng.choice(TARGETS), target)


def hard_link():
    os.link(known(), path(), follow_symlinks=False)


def remake():
    """Removes a folder and makes it again, with some of its entries."""
    target = known()
    names = [name for name in os.listdir(target) if not is_folder(target + b"/" + name)]
    mode = stat.S_IMODE(os.lstat(target).st_mode)
    saved = [(name, open(target + b"/" + name, "rb").read()) for name in names if not os.path.islink(target + b"/" + name)]
    shutil.rmtree(target)
    os.mkdir(target)
    for name, old in saved:
        if rng.random() < 0.7:
            write(target + b"/" + name, old)
    os.chmod(target, mode)


def touch():
    os.utime(known(), (0, 0), follow_symlinks=False)


def restore():
    """Changes a file and puts the old content back."""
    target = known()
    with open(target, "rb") as file:
        old = file.read()
    write(target, b"other")
    write(target, old)


ACTIONS = [write_new] * 5 + [edit_lines] * 4 + [rename] * 3 + [lambda: remove(known())] * 3 + [replace_by_another_kind] * 3 + \
    [lambda: os.makedirs(path()), change_mode, change_mode, convert, replace_safely, append, resize, link, hard_link, remake,
     touch, restore, lambda: os.unlink(known())]


def listed(folder):
    for name in sorted(os.listdir(folder)):
        at = os.path.join(folder, name)
        meta = os.lstat(at)
        mode = stat.S_IMODE(meta.st_mode)
        if stat.S_ISLNK(meta.st_mode):
            yield at, "link", 0o777, os.readlink(at).hex()
        elif stat.S_ISDIR(meta.st_mode):
            yield at, "folder", mode, ""
            with opened(at, mode):
                yield from listed(at)
        else:
            with opened(at, mode), open(at, "rb") as file:
                yield at, "file", mode, hashlib.sha256(file.read()).hexdigest()


class opened:
    """Gives the owner the rights to read an entry for a while, if they are missing."""

    def __init__(self, path, mode):
        self.path, self.mode = path, mode

    def __enter__(self):
        if self.mode & 0o500 != 0o500 and os.geteuid() != 0 and self.mode & 0o400 == 0 or self.is_closed_folder():
            os.chmod(self.path, self.mode | 0o700)

    def is_closed_folder(self):
        return is_folder(self.path) and self.mode & 0o500 != 0o500 and os.geteuid() != 0

    def __exit__(self, *_):
        if stat.S_IMODE(os.lstat(self.path).st_mode) != self.mode:
            os.chmod(self.path, self.mode)


os.umask(0o022)
for _ in range(STEPS):
    try:
        rng.choice(ACTIONS)()
    except OSError:
        pass
for at, kind, mode, shown in listed(b"."):
    print(json.dumps([at[2:].hex(), kind, mode, shown]))
