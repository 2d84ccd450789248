//! What root's worker can do, which runs with all ids.

use super::Place;

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
