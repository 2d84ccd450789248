"""Attempts to reach what is outside of a sandbox: `random.py CONTEXT SEED COUNT` makes that many in a random order, with links, renames and processes planted between, and prints `escaped NAME` for each one that succeeds. `random.py CONTEXT list` prints the names of those that succeed without a sandbox, and `random.py CONTEXT only NAME` makes one."""

import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import stat
import struct
import sys

context = json.loads(sys.argv[1])
home, workspace, store = context["home"], context["workspace"], context["store"]
victim, marker = context["victim"], context["marker"]
rng = random.Random()
libc = ctypes.CDLL(None, use_errno=True)
# Names that attempts and plants share.
NAMES = ["file", "dir", "dir/inner", "one", "two", "dir/three", "file/four"]
ATTACKS, PLANTS, CONTROLLED = [], [], []
has_own_mounts = False


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def attack(function):
    """An attempt that must fail in a sandbox, and that succeeds without one."""
    CONTROLLED.append(function)
    return inside(function)


def inside(function):
    """An attempt that must fail, and that also needs rights which no control should have."""
    ATTACKS.append(function)
    return function


def plant(function):
    """Prepares something for later attempts, or for the program that records the changes."""
    PLANTS.append(function)
    return function


def mount(source, target, kind=None, flags=0):
    check(libc.mount(source.encode(), target.encode(), kind, flags, None))


def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("escaped\n")


def name():
    return rng.choice(NAMES)


def own(name=""):
    return os.path.join(store, "workers", os.environ.get("SWARMLET_WORKER", "other"), name)


# Files of the user.

@attack
def make_a_file_at_home():
    write(home + "/new")


@attack
def append_to_a_file():
    write(home + "/.profile", "a")


@attack
def truncate_a_file():
    os.truncate(home + "/.profile", 0)


@attack
def change_a_mode():
    os.chmod(home + "/.profile", 0o777)


@attack
def change_a_time():
    os.utime(home + "/.profile", (0, 0))


@attack
def set_an_attribute():
    os.setxattr(home + "/.profile", "user.x", b"1")


@attack
def rename_a_file():
    os.rename(home + "/.profile", home + "/.renamed")


@attack
def remove_a_file():
    os.unlink(home + "/.profile")


@attack
def remove_a_folder():
    shutil.rmtree(home + "/folder")


@attack
def write_through_a_link():
    link = "link-%d" % rng.getrandbits(32)
    os.symlink(home + "/.profile", link)
    write(link)


@attack
def write_through_a_link_to_a_folder():
    link = "link-%d" % rng.getrandbits(32)
    os.symlink("../home", link)
    write(link + "/new")


@attack
def write_through_a_hard_link():
    link = "hard-%d" % rng.getrandbits(32)
    os.link(home + "/.profile", link)
    write(link)


@attack
def write_through_a_descriptor_of_a_folder():
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY)
    os.close(os.open(".profile", os.O_WRONLY | os.O_TRUNC, dir_fd=folder))


@attack
def reopen_a_descriptor_for_writing():
    file = os.open(home + "/.profile", os.O_RDONLY)
    write("/proc/self/fd/%d" % file)


@attack
def replace_by_a_rename():
    write(home + "/../replacement")
    os.rename(home + "/../replacement", home + "/.profile")


@attack
def move_a_file_out():
    os.rename("file", home + "/moved")


@attack
def rename_the_workspace():
    os.rename(workspace, workspace + "-moved")


@attack
def make_an_unnamed_file():
    os.close(os.open(home, os.O_TMPFILE | os.O_WRONLY, 0o600))


# Modes that lend rights, at each place that can be written.

def writable(name):
    folder = rng.choice([".", own(), "/tmp", "dir"])
    return os.path.join(folder, "%s-%d" % (name, rng.getrandbits(32)))


def with_mode(change):
    """Fails unless the change gave a file the bits."""
    at = writable("mode")
    open(at, "w").close()
    change(at)
    if not os.stat(at).st_mode & 0o6000:
        raise PermissionError(1, "")


@attack
def make_a_file_setuid():
    with_mode(lambda at: os.chmod(at, rng.choice([0o4755, 0o2755, 0o6777])))


@attack
def make_an_open_file_setuid():
    with_mode(lambda at: os.fchmod(os.open(at, os.O_RDONLY), 0o4755))


@attack
def create_a_setuid_file():
    at = writable("created")
    os.close(os.open(at, os.O_CREAT | os.O_WRONLY, 0o4777))
    if not os.stat(at).st_mode & 0o4000:
        raise PermissionError(1, "")


@attack
def create_a_setuid_file_by_openat2():
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0)
    check(libc.syscall(437, -100, writable("openat2").encode(), how, len(how)))


@attack
def make_a_setuid_node():
    os.mknod(writable("node"), stat.S_IFREG | 0o4755)


@inside
def give_a_file_capabilities():
    at = writable("capable")
    open(at, "w").close()
    os.setxattr(at, "security.capability", struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0xffffffff, 0))


@inside
def copy_a_setuid_program():
    at = writable("copied")
    shutil.copy2(rng.choice(["/bin/su", "/usr/bin/passwd", "/bin/mount"]), at)
    if not os.stat(at).st_mode & 0o6000:
        raise PermissionError(1, "")


@inside
def link_a_program_of_the_machine():
    os.link("/bin/su", writable("linked"))


@inside
def set_up_a_ring():
    check(libc.syscall(425, 4, ctypes.create_string_buffer(120)))


# The workspace and the store.

@attack
def read_another_worker():
    open(store + "/workers/other/result.txt").close()


@attack
def change_another_worker():
    write(store + "/workers/other/result.txt", "a")


@attack
def make_a_worker():
    os.mkdir(store + "/workers/made-%d" % rng.getrandbits(32))


@attack
def list_the_drafts():
    os.listdir(store + "/drafts")


@attack
def read_the_log_of_changes():
    os.listdir(store + "/audit")


@attack
def rename_the_store():
    os.rename(store, store + "-moved")


@inside
def rename_the_own_folder():
    os.rename(own(), own() + "-moved")


@inside
def read_a_hidden_file():
    if context["hides"] and os.stat(workspace + "/secret").st_size != 9:
        raise FileNotFoundError(2, "")
    if not context["hides"]:
        raise FileNotFoundError(2, "")


# Mounts.

@attack
def uncover_the_store_by_a_bind():
    if has_own_mounts:
        raise PermissionError(1, "")
    mount(home, home, flags=4096)


@attack
def mount_over_the_home():
    if has_own_mounts:
        raise PermissionError(1, "")
    mount("none", home, b"tmpfs")


@inside
def make_mounts_writable():
    mount("none", rng.choice([home, "/"]), flags=32 | 4096)
    os.close(os.open(home + "/.profile", os.O_WRONLY))


@inside
def unmount():
    check(libc.umount2(rng.choice([workspace, store, own().rstrip("/"), "/proc", "/tmp"]).encode(), 2))


@inside
def write_through_an_alias():
    alias = "/tmp/alias-%d" % rng.getrandbits(32)
    os.mkdir(alias)
    mount("/", alias, flags=4096 | rng.choice([0, 16384]))
    try:
        mount("none", alias, flags=32 | 4096)
    except OSError:
        pass
    os.close(os.open(alias + home + "/.profile", os.O_WRONLY))


@inside
def clone_the_tree_of_mounts():
    tree = check(libc.syscall(428, -100, home.encode(), 1 | 0x8000))
    os.close(os.open(".profile", os.O_WRONLY, dir_fd=tree))


@inside
def set_attributes_of_mounts():
    check(libc.syscall(442, -100, b"/", 0x8000, struct.pack("QQQQ", 0, 1, 0, 0), 32))
    os.close(os.open(home + "/.profile", os.O_WRONLY))


@inside
def enter_the_mounts_of_process_one():
    check(libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))


@inside
def leave_by_chroot():
    os.mkdir("/tmp/root-%d" % rng.getrandbits(32))
    here = os.open("/", os.O_RDONLY)
    os.chroot("/tmp")
    os.fchdir(here)
    os.chroot(".")
    os.chdir("../../../..")
    os.close(os.open("." + home + "/.profile", os.O_WRONLY))


@inside
def open_by_a_handle():
    handle, number = struct.pack("II", 128, 0) + bytes(128), ctypes.c_int()
    handle = ctypes.create_string_buffer(handle)
    check(libc.name_to_handle_at(-100, home.encode() + b"/.profile", handle, ctypes.byref(number), 0))
    file = check(libc.open_by_handle_at(os.open(home, os.O_RDONLY), handle, os.O_WRONLY))
    os.close(file)


# Processes and sockets.

@attack
def signal_a_process():
    os.kill(victim, 0)


@attack
def see_a_process():
    os.stat("/proc/%d/" % victim)


@attack
def trace_a_process():
    check(libc.ptrace(0x4206, victim, 0, 0))


@attack
def open_a_process():
    os.close(os.pidfd_open(victim))


@inside
def reach_the_root_of_process_one():
    os.close(os.open("/proc/1/root" + home + "/.profile", os.O_WRONLY))


@inside
def read_the_memory_of_process_one():
    open("/proc/1/mem", "rb").close()


@attack
def connect_to_a_socket():
    socket.socket(socket.AF_UNIX).connect(home + "/agent.sock")


@attack
def connect_to_a_socket_under_another_name():
    socket.socket(socket.AF_UNIX).connect(home + "/" + rng.choice(["linked.sock", "renamed.sock"]))


@attack
def connect_through_a_link_to_a_socket():
    link = "/tmp/link-%d" % rng.getrandbits(32)
    os.symlink(home + "/linked.sock", link)
    socket.socket(socket.AF_UNIX).connect(link)


@attack
def write_into_a_fifo():
    os.write(os.open(home + "/fifo", os.O_WRONLY | os.O_NONBLOCK), b"x")


@attack
def read_the_cache():
    if not os.listdir(home + "/.cache/swarmletfs"):
        raise FileNotFoundError(2, "")


@attack
def connect_to_an_abstract_socket():
    socket.socket(socket.AF_UNIX).connect("\0" + marker)


@inside
def type_into_the_terminal():
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")


# Kernel settings and devices. They are opened only.

@inside
def write_a_kernel_setting():
    paths = ["kernel/core_pattern", "vm/swappiness", "kernel/modprobe", "kernel/hostname", "fs/suid_dumpable"]
    os.close(os.open("/proc/sys/" + rng.choice(paths), os.O_WRONLY))


@inside
def open_a_trigger():
    os.close(os.open(rng.choice(["/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state"]), os.O_WRONLY))


@inside
def make_a_control_group():
    os.mkdir("/sys/fs/cgroup/made-%d" % os.getpid())


@inside
def open_a_device():
    os.close(os.open(rng.choice(["/dev/mem", "/dev/kmsg", "/dev/loop0", "/dev/fuse", "/dev/vda", "/dev/sda"]), os.O_WRONLY))


@inside
def make_a_device():
    at = "device-%d" % rng.getrandbits(32)
    os.mknod(at, rng.choice([stat.S_IFBLK, stat.S_IFCHR]) | 0o666, os.makedev(*rng.choice([(7, 0), (1, 1), (1, 5)])))


@inside
def set_the_host_name():
    check(libc.sethostname(b"escaped", 7))


@inside
def open_a_file_of_the_system():
    os.close(os.open(rng.choice(["/etc/passwd", "/etc/hostname", "/etc/hosts", "/usr/bin/env"]), os.O_WRONLY))


@inside
def touch_a_file_of_the_system():
    os.utime(rng.choice(["/etc/passwd", "/etc/hostname", "/etc", "/"]))


# Plants: they may succeed.

@plant
def plant_a_link():
    at = name()
    if os.path.lexists(at) and not os.path.isdir(at):
        os.unlink(at)
    os.symlink(rng.choice([home, home + "/.profile", "..", "../home", store, "/", "/etc/passwd", "/proc/self/root", "/proc/1/cwd"]), at)


@plant
def plant_a_link_for_a_folder():
    at = name()
    shutil.rmtree(at)
    os.symlink(rng.choice([home, "../home", "..", workspace]), at)


@plant
def rename_something():
    os.rename(name(), name())


@plant
def write_something():
    at = name()
    write(at)


@plant
def make_a_folder():
    os.makedirs(name())


@plant
def remove_something():
    at = name()
    if os.path.isdir(at) and not os.path.islink(at):
        shutil.rmtree(at)
    else:
        os.unlink(at)


@plant
def swap_while_it_is_searched():
    """Exchanges a folder and a link again and again, while the changes are searched."""
    if os.fork() == 0:
        try:
            os.symlink(home, "swap-link")
            os.mkdir("swap")
            write("swap/.profile")
        except OSError:
            pass
        for _ in range(3_000):
            libc.renameat2(-100, b"swap-link", -100, b"swap", 2)
        os._exit(0)


@plant
def forge_the_record():
    at = own(rng.choice(["changes", "base", "applied", "changes.json", "result.txt", "logs", "logs/execution.log",
                         "metadata.json", "metrics.jsonl", "thread.jsonl", "changes/file", "base/file",
                         ".swarmletfs-x"]))
    if rng.random() < 0.5:
        if os.path.isdir(at) and not os.path.islink(at):
            os.rename(at, at + ".old-%d" % rng.getrandbits(32))
        elif os.path.lexists(at):
            os.unlink(at)
    target = rng.choice([home, home + "/.profile", workspace, workspace + "/file", store, "../other",
                         "../other/result.txt", "../../../home"])
    kind = rng.randrange(5)
    if kind < 3:
        os.symlink(target, at)
    elif kind == 3:
        os.mkfifo(at)
    else:
        os.makedirs(at)


@plant
def forge_changes():
    forged = {"version": 1, "workspace": home, "engine": "overlay", "is_final": True, "files": [
        {"path": path, "kind": "added", "base": "none", "new": {"type": "link", "mode": "0777", "target": "/"}}
        for path in ["../home/.profile", "/etc/passwd", "dir/../../home/x"]]}
    with open(own("changes.json"), "w") as file:
        json.dump(forged, file)


@plant
def close_a_folder():
    os.chmod(rng.choice(["dir", own(), own("logs"), own("changes")]), rng.choice([0, 0o500, 0o200, 0o777]))


@plant
def set_an_attribute_of_overlays():
    prefix = rng.choice(["user", "trusted"])
    key = rng.choice(["opaque", "redirect", "metacopy", "origin", "whiteout", "xwhiteouts"])
    os.setxattr(rng.choice([".", "dir", "file"]), f"{prefix}.overlay.{key}", rng.choice([b"y", b"/../../home", b""]))


@plant
def make_a_whiteout():
    os.mknod("dir/white", stat.S_IFCHR, 0)


@plant
def start_a_daemon():
    if os.fork() == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "3600" + "." + marker[-9:]])
        os._exit(0)


@plant
def signal_the_process_group():
    # Ignored by this process and those that it starts; it would end all others.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(0, signal.SIGUSR1)


@plant
def end_all_processes_of_the_namespace():
    if os.getpid() < 50 and os.path.exists("/proc/1/ns") and "SWARMLET_WORKER" in os.environ:
        os.kill(1, signal.SIGKILL)


@plant
def write_temporary_files():
    for folder in ("/tmp", "/dev/shm"):
        write(folder + "/" + marker)


@plant
def make_a_loop_of_folders():
    at = "deep"
    for _ in range(80):
        at += "/d"
    os.makedirs(at)


def enter():
    """Makes namespaces of users and mounts, which works only with `--nested`."""
    global has_own_mounts
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(0x10000000 | 0x20000))
    has_own_mounts = True
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
    open("/proc/self/gid_map", "w").write(f"0 {gid} 1")


def stop_waiting(number, frame):
    raise TimeoutError


def make(function):
    """Returns false if the function fails, or waits: it may open a FIFO that was planted before."""
    signal.alarm(2)
    try:
        function()
    except (OSError, shutil.Error):
        return False
    finally:
        signal.alarm(0)
    return True


def main():
    signal.signal(signal.SIGALRM, stop_waiting)
    if sys.argv[2] == "list":
        print("\n".join(function.__name__ for function in CONTROLLED))
        return
    if sys.argv[2] == "only":
        done = [make(function) for function in CONTROLLED if function.__name__ == sys.argv[3]]
        print("done" if done == [True] else "failed")
        return
    rng.seed(int(sys.argv[2]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for step in range(int(sys.argv[3])):
        if rng.random() < 0.4:
            make(rng.choice(PLANTS))
        else:
            function = rng.choice(ATTACKS)
            if make(function):
                print("escaped", function.__name__, flush=True)
        if not has_own_mounts and rng.random() < 0.02:
            make(enter)
        if rng.random() < 0.1:
            make(lambda: os.chdir(workspace))


main()
