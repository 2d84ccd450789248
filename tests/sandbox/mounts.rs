//! Attempts to change the mounts, and to reach processes outside.

use super::{Place, for_each_user};
use crate::support::skip;

/// Numbers of mount(2), umount2(2) and unshare(2) come from the C library. `enter` makes a user and
/// a mount namespace in which the caller has all capabilities, but not if it is root in a sandbox:
/// no id is mapped then.
const NAMESPACE: &str = "
def enter():
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(0x10000000 | 0x20000))
    maps = [('setgroups', 'deny'), ('uid_map', f'{uid} {uid} 1'), ('gid_map', f'{gid} {gid} 1')]
    for name, text in maps:
        with open(f'/proc/self/{name}', 'w') as file:
            file.write(text)
def mount(source, target, kind, flags):
    check(libc.mount(source.encode(), target.encode(), kind, flags, None))
";

/// The control runs in a namespace of its own, so that it changes no mount of the machine.
#[test]
fn mounts_cannot_be_changed() {
    for_each_user(|place| {
        let covers = [place.path("workspace"), place.path("store")]
            .map(|path| format!("attempt(lambda: check(libc.umount2(b'{}', 2)))", path.display()));
        let changes = format!(
            "{NAMESPACE}
attempt(lambda: mount('{0}', '{0}', None, 4096))
attempt(lambda: mount('none', '{0}', None, 32 | 4096))
attempt(lambda: mount('none', '{0}', b'tmpfs', 0))
attempt(lambda: check(libc.umount2(b'{0}', 2)))
",
            place.path("home").display()
        );
        assert_eq!(place.attack_in_namespace(&changes), ["ok"; 4]);
        let inside = place.attack_inside(&[], &format!("{changes}{}", covers.join("\n")));
        assert_eq!(inside, ["EPERM"; 6], "uid {}", place.uid);
    });
}

/// Without Landlock, a nested namespace can be made, but it uncovers nothing. Mounts in it are its
/// own: what is written to them is not in the view.
#[test]
fn nested_namespace_uncovers_nothing() {
    for_each_user(|place| {
        let (workspace, store) = (place.path("workspace"), place.path("store"));
        let code = format!(
            "{NAMESPACE}
attempt(enter)
attempt(lambda: mount('none', '/tmp', b'tmpfs', 0))
attempt(lambda: check(libc.umount2(b'{w}', 2)))
attempt(lambda: check(libc.umount2(b'{s}', 2)))
attempt(lambda: mount('/', '/tmp', None, 4096))
attempt(lambda: mount('none', '/', None, 32 | 4096))
attempt(lambda: mount('none', '{w}', b'tmpfs', 0))
attempt(lambda: open('{w}/made', 'w'))
",
            w = workspace.display(),
            s = store.display()
        );
        let (outside, inside) = place.attack(&["--nested"], &code);
        let about = format!("uid {}", place.uid);
        let own = ["EINVAL", "EINVAL", "EINVAL"];
        assert_eq!(outside, [&["ok"; 2][..], &own, &["ok"; 3]].concat(), "{about}");
        // Only that the file systems are read-only cannot be changed.
        let [entered, written] = if place.uid == 0 { ["EPERM", "EOVERFLOW"] } else { ["ok"; 2] };
        let expected = [&[entered, "ok"][..], &own, &["EPERM", "ok", written]].concat();
        assert_eq!(inside, expected, "{about}");
        let made = format!("store/workers/worker-{}/changes/made", place.count());
        assert!(!workspace.join("made").exists() && !place.path(made).exists(), "{about}");
        // With Landlock, nothing can be mounted at all.
        let inside = place.attack_inside(&[], &code);
        let refused = ["EPERM", "EINVAL", "EINVAL", "EPERM", "EPERM", "EPERM"];
        assert_eq!(inside[1..7], refused, "{about}");
    });
}

/// Who can mount the tree of control groups can end processes outside, and change their limits.
#[test]
fn control_groups_cannot_be_reached() {
    for_each_user(|place| {
        let code = "
attempt(lambda: check(libc.unshare(0x10000000 | 0x20000 | 0x2000000)))
attempt(lambda: check(libc.unshare(0x10000000 | 0x20000)))
attempt(lambda: check(libc.mount(b'none', b'/mnt', b'cgroup2', 0, None)))
";
        let (outside, inside) = place.attack(&["--nested"], code);
        assert_eq!((&*outside[0], &*outside[2]), ("ok", "ok"), "uid {}: control", place.uid);
        assert_eq!(inside, ["ENOSPC", "ok", "EPERM"], "uid {}", place.uid);
    });
}

#[test]
fn sandbox_of_an_agent_works_inside_if_allowed() {
    for_each_user(|place| {
        let nested = [
            "bwrap",
            "--ro-bind",
            "/",
            "/",
            "--unshare-user",
            "--unshare-pid",
            "--proc",
            "/proc",
            "true",
        ];
        if !place.plain(&nested).status.success() {
            return skip("bwrap does not work here");
        }
        let inside = place.run(&["--nested"], &nested);
        assert_eq!(inside.status.success(), place.uid != 0, "uid {}: {inside:?}", place.uid);
        assert!(!place.run(&[], &nested).status.success(), "uid {}", place.uid);
    });
}

#[test]
fn processes_outside_cannot_be_reached() {
    for_each_user(|place| {
        let mut victim = place.command(&["sleep", "60"]).spawn().unwrap();
        let pid = victim.id();
        let code = format!(
            "
attempt(lambda: os.kill({pid}, 0))
attempt(lambda: os.stat('/proc/{pid}/cwd/file'))
attempt(lambda: os.stat('/proc/{pid}/root/'))
attempt(lambda: open('/proc/{pid}/environ').read())
attempt(lambda: os.open('/proc/{pid}/ns/mnt', os.O_RDONLY))
attempt(lambda: check(libc.ptrace(0x4206, {pid}, 0, 0)))
"
        );
        // A process of the same number may exist inside only if numbers are very low.
        assert!(pid > 100);
        let unseen = ["ESRCH", "ENOENT", "ENOENT", "ENOENT", "ENOENT", "ESRCH"];
        place.fails_inside(&[], &code, &unseen);
        victim.kill().unwrap();
        victim.wait().unwrap();
    });
}

#[test]
fn capabilities_and_new_privileges_are_gone() {
    for_each_user(|place| {
        let status =
            place.shell(&[], "grep -E '^(CapEff|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status");
        let values: Vec<&str> = status.split_whitespace().skip(1).step_by(2).collect();
        // Root: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID.
        let kept = if place.uid == 0 { "00000000000000eb" } else { "0000000000000000" };
        assert_eq!(values, [kept, kept, "0000000000000000", "1"]);
    });
}

#[test]
fn user_can_make_no_devices_and_owns_only_own_files() {
    let place = Place::of_user();
    let code = "
import stat
attempt(lambda: os.setgroups([0]))
attempt(lambda: os.mknod('device', stat.S_IFCHR | 0o666, os.makedev(1, 3)))
attempt(lambda: os.chown('file', 0, 0))
";
    let (_, inside) = place.attack(&[], code);
    assert_eq!(inside, ["EPERM", "EPERM", "EINVAL"]);
}
