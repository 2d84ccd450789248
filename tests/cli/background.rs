//! Mounting in the background: returns when the mount answers, and prints the chosen store.

use std::fs;
use std::path::Path;

use super::program::{
    MountSandbox, check_log_later, is_root, mount, mount_count_at, program, run, servers,
    small_store, swarmletfs, umount, wait_until, with_log,
};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::skip;

#[test]
fn mount_returns_when_readable_and_prints_the_store() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let done = mount(&store.path(), &point, &[]);
    // Readable at once, without waiting.
    assert!(fs::read_to_string(point.join("README.md")).unwrap().len() > 100);
    assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
    done.assert_success();
    assert_eq!(done.out, "");
    let lines: Vec<&str> = done.err.lines().collect();
    let (store, shown_point) = (store.path(), point.to_str().unwrap());
    assert_eq!(lines.len(), 2, "{done:#?}");
    assert_eq!(
        lines[0],
        format!("swarmletfs: the store is {} (named by --store)", store.display())
    );
    assert!(
        lines[1].contains("1 worker in 1 run: mounted on ") && lines[1].contains(shown_point),
        "{done:#?}"
    );
    assert!(lines[1].contains(&format!("`swarmletfs umount {shown_point}`")), "{done:#?}");
    assert_eq!(servers(|at| at == point).len(), 1);
    umount(&point, &[]).assert_success();
    wait_until("the end of the server", || servers(|at| at == point).is_empty());
    assert_eq!(mount_count_at(&point), 0);
}

#[test]
fn server_releases_terminal_folder_and_writable_files() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut command = with_log(swarmletfs(["mount"]), &point);
    command.arg("--store").arg(store.path()).arg(&point).current_dir(sandbox.folder("cwd"));
    run(command).assert_success();
    let pid = servers(|at| at == point)[0].as_raw_nonzero();
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    for fd in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap(), Path::new("/dev/null"));
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let entry = entry.unwrap();
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if !target.starts_with(store.path()) {
            continue;
        }
        let info = fs::read_to_string(format!(
            "/proc/{pid}/fdinfo/{}",
            entry.file_name().to_str().unwrap()
        ))
        .unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        assert_eq!(
            i32::from_str_radix(flags, 8).unwrap() & 3,
            0,
            "{target:?} is open with more than read access"
        );
    }
}

#[test]
fn short_form_accepts_mount_helper_options() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let usual = "rw,dev,suid,noatime,_netdev,x-systemd.automount,owner=7,run=48,budget=4k,ttl=5";
    let mut command = with_log(swarmletfs([store.path().as_os_str(), point.as_os_str()]), &point);
    command.args(["-o", usual]);
    let done = run(command);
    done.assert_success();
    assert!(done.err.contains("1 worker in 1 run"), "{done:#?}");
    umount(&point, &[]).assert_success();
    let mut command = swarmletfs(["-o", "store=/nowhere\\,at all,all_owners,allow_other"]);
    command.arg(&point);
    run(command).assert_failure(1, &["/nowhere,at all"]);
    let mut command = with_log(swarmletfs(["-o", "owner=8"]), &point);
    command.arg(&point).env("SWARMLET_DATA_PATH", store.path());
    let done = run(command);
    done.assert_success();
    assert!(
        done.err.contains("0 workers") && done.err.contains("(named by $SWARMLET_DATA_PATH)"),
        "{done:#?}"
    );
    umount(&point, &[]).assert_success();
}

/// mount(8) looks for the program in system directories. In a mount namespace, one of them contains
/// it.
const BY_TYPE: &str = r#"
program=$1 store=$2 point=$3 log=$4
mount -t tmpfs none /usr/local/bin
ln -s "$program" /usr/local/bin/swarmletfs
for options in owner=7 defaults,noatime,ro,allow_other,all_owners noauto,nofail,x-a=b,comment=c,run=48; do
    mount -t fuse.swarmletfs -o "$options,log=$log" "$store" "$point"
    grep -q " $point fuse.swarmletfs " /proc/mounts
    cat "$point/workers/w1/result.txt"
    umount "$point"
done
! mount -t fuse.swarmletfs -o ownr=7 "$store" "$point"
! grep -q " $point " /proc/mounts
"#;

#[test]
fn mount_command_mounts_by_file_system_type() {
    needs_fuse!();
    let helper =
        ["/sbin/mount.fuse", "/usr/sbin/mount.fuse"].iter().any(|path| Path::new(path).exists());
    if !helper || !is_root() || run(program("unshare", ["-m", "true"])).code != Some(0) {
        skip("mount.fuse is not installed, or a mount namespace is not permitted");
        return;
    }
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut command = program("unshare", ["-m", "bash", "-euc", BY_TYPE, "bash", PROGRAM]);
    let log = sandbox.at("log");
    check_log_later(&point, &log);
    command.arg(store.path()).arg(&point).arg(&log);
    let done = run(command);
    assert_eq!(done.code, Some(0), "{done:#?}");
    assert_eq!(done.out, "donedonedone", "{done:#?}");
    assert!(done.err.contains("-o ownr=7 is not an option"), "{done:#?}");
    wait_until("the end of the servers", || servers(|at| at == point).is_empty());
}

#[test]
fn mount_merges_stores_and_drops_duplicates() {
    needs_fuse!();
    let (first, second, sandbox) = (small_store(), small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut command = with_log(swarmletfs(["mount"]), &point);
    for store in [&first, &second, &first] {
        command.arg("--store").arg(store.path());
    }
    command.arg(&point);
    let done = run(command);
    done.assert_success();
    assert!(done.err.contains("2 workers in 1 run"), "{done:#?}");
    assert_eq!(done.err.matches("the store is").count(), 2);
    assert!(point.join("workers/w1").exists() && point.join("workers/w1~2").exists());
    umount(&point, &[]).assert_success();
}

#[test]
fn one_invalid_store_prevents_the_mount() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    mount(&store.path(), &point, &["--store", "/no/such/store"])
        .assert_failure(1, &["/no/such/store"]);
    assert_eq!(mount_count_at(&point), 0);
    wait_until("the end of the server", || servers(|at| at == point).is_empty());
}
