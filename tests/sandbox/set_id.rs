//! Programs that would lend the rights of a worker's user to every user of the machine.
//!
//! What root's worker can do, which runs with all ids.

use std::os::unix::fs::PermissionsExt;

use super::for_each_user;
use super::place::Place;

/// Each call that can give a file a mode, with a setuid bit in it.
const MODES: &str = "
import stat
os.umask(0)
def made(path, mode=0o755):
    open(path, 'w').close()
    os.chmod(path, mode)
    return path.encode()
def by_openat2(path):
    how = struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, 0o4755, 0)
    check(libc.syscall(437, -100, path.encode(), how, len(how)))
def tries(at):
    attempt(lambda: os.chmod(made(at + 'chmod'), 0o4755))
    attempt(lambda: os.chmod(made(at + 'setgid'), 0o2755))
    attempt(lambda: os.fchmod(os.open(made(at + 'fchmod'), os.O_WRONLY), 0o6755))
    attempt(lambda: os.chmod(os.path.basename(made(at + 'at')), 0o4755, dir_fd=os.open(at or '.', os.O_RDONLY)))
    attempt(lambda: os.open(at + 'open', os.O_CREAT | os.O_WRONLY, 0o4755))
    attempt(lambda: os.open(at or '.', os.O_TMPFILE | os.O_WRONLY, 0o4755))
    attempt(lambda: check(libc.creat((at + 'creat').encode(), 0o4755)))
    attempt(lambda: os.mknod(at + 'mknod', stat.S_IFREG | 0o4755))
    attempt(lambda: by_openat2(at + 'openat2'))
";

#[test]
fn no_call_makes_a_setuid_or_setgid_file() {
    for_each_user(|place| {
        let home = place.path("home");
        place.make_dir("home/folder");
        let code = format!("import struct\n{MODES}tries('')\ntries('{}/')", home.display());
        let one = [&["EPERM"; 8][..], &["ENOSYS"]].concat();
        let write = ["--write", home.to_str().unwrap()];
        for options in [&write[..], &["--nested", write[0], write[1]]] {
            // The files of the control are gone before the next one.
            let both = [&one[..], &one[..]].concat();
            place.fails_inside(options, &code, &both);
            for name in ["chmod", "setgid", "fchmod", "at", "open", "creat", "mknod", "openat2"] {
                let _ = std::fs::remove_file(place.path("home").join(name));
                let _ = std::fs::remove_file(place.path("workspace").join(name));
            }
        }
    });
}

/// Promise: No file that a command makes in a sandbox has a setuid or setgid bit or capabilities,
/// and the directory of a worker is closed to other users when it starts.
#[test]
fn own_directory_holds_no_setuid_file_and_is_closed_to_others() {
    for_each_user(|place| {
        let code = format!(
            "import struct\n{MODES}
own = os.environ['SWARMLET_STORE'] + '/workers/' + os.environ['SWARMLET_WORKER'] + '/'
tries(own)
print(oct(os.stat(own).st_mode & 0o7))
print(sum(os.lstat(own + name).st_mode & 0o6000 != 0 for name in os.listdir(own)))
"
        );
        let inside = place.attack_inside(&[], &code);
        assert_eq!(inside[..9], [&["EPERM"; 8][..], &["ENOSYS"]].concat());
        assert_eq!(inside[9..], ["0o0", "0"]);
        let own = place.path(format!("store/workers/worker-{}", place.count()));
        let mode = own.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o5, 0o5, "{mode:o}: open again after the end");
    });
}

/// A write would keep the bit of a file that root may write.
#[test]
fn setuid_file_that_is_written_loses_the_bit() {
    for_each_user(|place| {
        let path = place.write("home/program", "old");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let home = place.path("home");
        place.shell(&["--write", home.to_str().unwrap()], "echo new > $HOME/program");
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
    });
}

#[test]
fn other_ways_to_a_file_that_lends_rights_are_refused() {
    for_each_user(|place| {
        let code = "
import struct
open('program', 'w').close()
capability = struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)
attempt(lambda: os.setxattr('program', 'security.capability', capability))
# An overlay copies a message queue as a file, with its mode.
queue = b'/swarmletfs-test-%d' % os.getpid()
attempt(lambda: check(libc.mq_open(queue, os.O_CREAT | os.O_RDWR, 0o4755, None)))
libc.mq_unlink(queue)
attempt(lambda: check(libc.syscall(425, 4, ctypes.create_string_buffer(120))))
";
        let (outside, inside) = place.attack(&[], code);
        assert_eq!(outside[0] == "ok", place.uid == 0, "{outside:?}");
        assert_eq!(outside[1], "ok");
        assert_eq!(inside, ["ENOTSUP", "EPERM", "EPERM"]);
    });
}

/// In a user namespace, its root has the right to give capabilities to a file.
#[test]
fn root_of_a_namespace_inside_gives_no_file_capabilities() {
    let place = Place::of_user();
    let code = "
import struct, subprocess
inner = \"import os, struct; os.setxattr('program', 'security.capability', struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0))\"
open('program', 'w').close()
done = subprocess.run(['unshare', '--user', '--map-root-user', 'python3', '-c', inner])
print(done.returncode, os.listxattr('program'))
os.remove('program')
";
    for options in [&[][..], &["--nested"]] {
        let (outside, inside) = place.attack(options, code);
        assert_eq!(outside, ["0 ['security.capability']"]);
        assert_eq!(inside, ["1 []"], "{options:?}");
    }
}

/// Programs that open files as they would on an older kernel, and this program itself, work.
#[test]
fn own_commands_and_modes_without_the_bits_work() {
    for_each_user(|place| {
        let program = super::place::swarmletfs();
        let script = format!(
            "echo '{{\"role\": \"assistant\", \"content\": \"hello\"}}' | {program} worker message >/dev/null
            {program} record -- true
            echo result | {program} worker put outputs/result >/dev/null
            touch file; chmod 1777 file; stat -c %a file"
        );
        let said = place.shell(&[], &script);
        assert!(said.ends_with("1777\n"), "{said}");
        let own = place.path(format!("store/workers/worker-{}", place.count()));
        assert_eq!(std::fs::read_to_string(own.join("outputs/result")).unwrap(), "result\n");
    });
}

#[test]
fn kernel_settings_and_devices_are_out_of_reach() {
    let Some(place) = Place::of_root() else { return };
    let code = "
paths = ['/proc/sys/kernel/core_pattern', '/proc/sys/vm/swappiness', '/etc/passwd']
for path in paths:
    attempt(lambda: os.close(os.open(path, os.O_WRONLY)))
";
    place.fails_inside(&[], code, &["EROFS", "EROFS", "EROFS"]);
    // Block devices are not there, and a device file in the workspace has no effect.
    let listed = place.shell(&[], "find /dev -type b | wc -l; ls /dev/mem /dev/kmsg 2>&1 | wc -l");
    assert_eq!(listed, "0\n2\n");
    let writable = "for file in $(find /sys -maxdepth 4 -type f -perm -200 | head -50); do
                        ! test -w $file || echo $file
                    done
                    ! mkdir /sys/fs/cgroup/made 2>/dev/null || echo made";
    assert_eq!(place.shell(&[], writable), "");
}

#[test]
fn device_files_can_be_neither_made_nor_opened() {
    let Some(place) = Place::of_root() else { return };
    let made =
        place.plain(&["mknod", place.path("workspace/zero").to_str().unwrap(), "c", "1", "5"]);
    assert!(made.status.success());
    let code = "
import stat
attempt(lambda: open('zero', 'rb').read(1))
attempt(lambda: os.mknod('own', stat.S_IFBLK | 0o600, os.makedev(7, 0)))
os.path.lexists('own') and os.unlink('own')
";
    place.fails_inside(&[], code, &["EACCES", "EPERM"]);
}

#[test]
fn files_of_other_users_can_be_changed_in_the_draft() {
    let Some(place) = Place::of_root() else { return };
    std::os::unix::fs::chown(place.path("workspace/file"), Some(4321), Some(4321)).unwrap();
    let seen = place.shell(
        &[],
        "echo more >> file; chown 99:99 dir/inner; stat -c %u file dir/inner; rm file; \
         setpriv --reuid 4321 --clear-groups id -u",
    );
    assert_eq!(seen, "4321\n99\n4321\n");
    assert_eq!(place.read("workspace/file"), "original\n");
}
