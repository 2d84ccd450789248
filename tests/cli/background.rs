//! Started in the background, it returns when the mount answers, and says what was chosen.

use std::fs;
use std::path::Path;

use super::program::{
    Yard, is_root, logged, look_through, mount, ours_at, plain, run, servers, small_store, typed, umount, wait_until,
};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;
use crate::support::skip;

#[test]
fn it_returns_when_the_mount_answers_and_says_what_was_chosen() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let done = mount(&store.path(), &point, &[]);
    // At once, without waiting.
    assert!(fs::read_to_string(point.join("README.md")).unwrap().len() > 100);
    assert_eq!(fs::read(point.join("workers/w1/result.txt")).unwrap(), b"done");
    done.fine();
    assert_eq!(done.out, "");
    let said: Vec<&str> = done.err.lines().collect();
    let (store, point_said) = (store.path(), point.to_str().unwrap());
    assert_eq!(said.len(), 2, "{done:#?}");
    assert_eq!(said[0], format!("swarmletfs: the store is {} (named by --store)", store.display()));
    assert!(said[1].contains("1 worker in 1 run: mounted on ") && said[1].contains(point_said), "{done:#?}");
    assert!(said[1].contains(&format!("`swarmletfs umount {point_said}`")), "{done:#?}");
    assert_eq!(servers(|at| at == point).len(), 1);
    umount(&point, &[]).fine();
    wait_until("the end of the server", || servers(|at| at == point).is_empty());
    assert_eq!(ours_at(&point), 0);
}

#[test]
fn the_server_holds_neither_the_terminal_nor_the_folder_nor_a_writable_file() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let mut command = logged(typed(["mount"]), &point);
    command.arg("--store").arg(store.path()).arg(&point).current_dir(yard.folder("cwd"));
    run(command).fine();
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
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_str().unwrap())).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        assert_eq!(i32::from_str_radix(flags, 8).unwrap() & 3, 0, "{target:?} is open for more than reading");
    }
}

#[test]
fn the_short_form_and_the_options_of_mount_are_taken() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let usual = "rw,dev,suid,noatime,_netdev,x-systemd.automount,owner=7,run=48,budget=4k,ttl=5";
    let mut command = logged(typed([store.path().as_os_str(), point.as_os_str()]), &point);
    command.args(["-o", usual]);
    let done = run(command);
    done.fine();
    assert!(done.err.contains("1 worker in 1 run"), "{done:#?}");
    umount(&point, &[]).fine();
    let mut command = typed(["-o", "store=/nowhere\\,at all,all_owners,allow_other"]);
    command.arg(&point);
    run(command).refused(1, &["/nowhere,at all"]);
    let mut command = logged(typed(["-o", "owner=8"]), &point);
    command.arg(&point).env("SWARMLET_DATA_PATH", store.path());
    let done = run(command);
    done.fine();
    assert!(done.err.contains("0 workers") && done.err.contains("(named by $SWARMLET_DATA_PATH)"), "{done:#?}");
    umount(&point, &[]).fine();
}

/// mount(8) looks for the program in the system's own folders: here, in a mount namespace, it is in one of them.
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
fn mount_8_mounts_it_by_its_type() {
    needs_fuse!();
    let helper = ["/sbin/mount.fuse", "/usr/sbin/mount.fuse"].iter().any(|path| Path::new(path).exists());
    if !helper || !is_root() || run(plain("unshare", ["-m", "true"])).code != Some(0) {
        skip("mount.fuse is not installed, or a mount namespace is not permitted");
        return;
    }
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let mut command = plain("unshare", ["-m", "bash", "-euc", BY_TYPE, "bash", PROGRAM]);
    let log = yard.at("log");
    look_through(&point, &log);
    command.arg(store.path()).arg(&point).arg(&log);
    let done = run(command);
    assert_eq!(done.code, Some(0), "{done:#?}");
    assert_eq!(done.out, "donedonedone", "{done:#?}");
    assert!(done.err.contains("-o ownr=7 is not an option"), "{done:#?}");
    wait_until("the end of the servers", || servers(|at| at == point).is_empty());
}

#[test]
fn several_stores_are_one_swarm_and_one_named_twice_is_one() {
    needs_fuse!();
    let (first, second, yard) = (small_store(), small_store(), Yard::new());
    let point = yard.folder("mnt");
    let mut command = logged(typed(["mount"]), &point);
    for store in [&first, &second, &first] {
        command.arg("--store").arg(store.path());
    }
    command.arg(&point);
    let done = run(command);
    done.fine();
    assert!(done.err.contains("2 workers in 1 run"), "{done:#?}");
    assert_eq!(done.err.matches("the store is").count(), 2);
    assert!(point.join("workers/w1").exists() && point.join("workers/w1~2").exists());
    umount(&point, &[]).fine();
}

#[test]
fn one_bad_store_among_good_ones_is_no_mount() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    mount(&store.path(), &point, &["--store", "/no/such/store"]).refused(1, &["/no/such/store"]);
    assert_eq!(ours_at(&point), 0);
    wait_until("the end of the server", || servers(|at| at == point).is_empty());
}
