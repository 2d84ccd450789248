//! The package where nothing else of FUSE is installed, as mount(8) uses it.

use super::clean_root::CleanRoot;

/// A line of /etc/fstab with options of mount(8), systemd and swarmletfs.
const FSTAB: &str = "/srv/swarm /mnt/swarm swarmletfs \
                     ro,only_owner=7,allow_other,nofail,_netdev,noexec,x-systemd.automount 0 0";

/// Lists all files in a root, except for the databases of the package manager and of man-db.
const FILES: &str = "find / -xdev \\( -path /var/lib/dpkg -o -path /var/log -o -path /var/cache/man \
                     -o -path /var/lib/systemd -o -path /tmp -o -path /run -o -path /proc \\) \
                     -prune -o -print | sort";

fn with_fstab() -> Option<CleanRoot> {
    let root = CleanRoot::enter()?;
    root.install();
    root.output(&format!("mkdir /mnt/swarm; echo '{FSTAB}' > /etc/fstab"));
    Some(root)
}

/// Promise: Removing the package leaves nothing behind.
#[test]
#[ignore = "only in scripts/check --all"]
fn installed_program_has_manual_pages_and_completions_and_is_removed_wholly() {
    let Some(root) = CleanRoot::enter() else { return };
    let before = root.output(FILES);
    root.install();
    assert!(root.output("swarmletfs --version").starts_with("swarmletfs "));
    let pages = root.output("man -w swarmletfs swarmletfs-mount mount.swarmletfs");
    assert_eq!(pages.lines().count(), 3, "{pages}");
    let page = root.output("man mount.fuse.swarmletfs");
    assert!(page.contains("/etc/fstab") && page.contains("Exit code: 0"), "{page}");
    let completed = root.output(
        "set +u; source /usr/share/bash-completion/bash_completion; _completion_loader swarmletfs || :
        COMP_LINE='swarmletfs compl' COMP_POINT=16
        _swarmletfs swarmletfs compl; echo ${COMPREPLY[*]}",
    );
    assert_eq!(completed, "completions\n");
    root.output("dpkg --remove swarmletfs");
    root.output("dpkg --purge swarmletfs");
    let after = root.output(FILES);
    let left: Vec<&str> =
        after.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
    assert_eq!(left, [""; 0]);
    assert_eq!(after.lines().count(), before.lines().count());
}

/// Promise: Root mounts by /etc/fstab without fuse3.
#[test]
#[ignore = "only in scripts/check --all"]
fn fstab_mounts_without_fuse3() {
    let Some(root) = with_fstab() else { return };
    root.output("! command -v fusermount3 fusermount mount.fuse");
    let done = root.run("mount /mnt/swarm");
    assert_eq!((done.code, &*done.out, &*done.err), (Some(0), "", ""));
    assert_eq!(root.output("cat /mnt/swarm/workers/w1/result.txt"), "done");
    let as_other = "setpriv --reuid=65534 --clear-groups cat /mnt/swarm/workers/w1/result.txt";
    assert_eq!(root.output(as_other), "done");
    let row = root.output("findmnt --noheadings --raw --output SOURCE,FSTYPE,OPTIONS /mnt/swarm");
    let expected = "/srv/swarm fuse.swarmletfs ro,nosuid,nodev,noexec,noatime,";
    assert!(row.starts_with(expected), "{row}");
    // It is there already.
    root.output("mount --all");
    assert_eq!(root.mounts(), "/mnt/swarm\n");
    let again = root.run("mount /mnt/swarm");
    assert_eq!(again.code, Some(32), "{again:#?}");
    assert!(again.err.contains("swarmletfs is already mounted on /mnt/swarm"), "{again:#?}");
    root.output("umount /mnt/swarm");
    assert_eq!(root.output("ls /mnt/swarm"), "");
    root.output("mount --all --types swarmletfs --verbose && test -e /mnt/swarm/summary");
    root.output("umount /mnt/swarm");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn mount_command_mounts_by_both_types() {
    let Some(root) = with_fstab() else { return };
    for file_system in ["swarmletfs", "fuse.swarmletfs"] {
        let mount =
            format!("mount -v -t {file_system} -o rw,all_owners,user,sync /srv/swarm /mnt/swarm");
        let done = root.run(&mount);
        assert_eq!(done.code, Some(0), "{done:#?}");
        assert!(done.err.contains("1 worker in 1 run: mounted on /mnt/swarm"), "{done:#?}");
        assert_eq!(root.output("cat /mnt/swarm/workers/w1/result.txt"), "done");
        root.output("umount /mnt/swarm");
    }
    let stores = "mkdir -p /srv/second/workers; mount -t swarmletfs -o all_owners,store=/srv/swarm,store=/srv/second \
                  both /mnt/swarm; findmnt --noheadings --output SOURCE /mnt/swarm; umount /mnt/swarm";
    assert_eq!(root.output(stores), "both\n");
}

#[test]
#[ignore = "only in scripts/check --all"]
fn letters_of_mount_are_accepted() {
    let Some(root) = with_fstab() else { return };
    root.output("mount --fake --verbose /mnt/swarm && test ! -e /mnt/swarm/summary");
    root.output("mount -n -s /mnt/swarm && umount /mnt/swarm");
    root.output("mount.swarmletfs /srv/swarm /mnt/swarm -nsv -o only_owner=7 -t swarmletfs");
    root.output(
        "umount /mnt/swarm; mount.swarmletfs --help | grep fstab; mount.swarmletfs --version",
    );
}

#[test]
#[ignore = "only in scripts/check --all"]
fn failures_have_exit_codes_of_mount() {
    let Some(root) = with_fstab() else { return };
    for (arguments, code, named) in [
        ("-o ownr=7 /srv/swarm", 1, "-o ownr=7 is not an option of this file system"),
        ("-s -o ownr=7 /srv/swarm", 1, "-o ownr=7 is not an option"),
        ("-o remount,ro", 1, "-o remount is not supported"),
        ("-o allow_other /srv/swarm", 1, "choose the workers"),
        ("-o ro /srv/swarm", 1, "cannot tell whose workers to show"),
        ("-o only_owner=7 swarm", 1, "it is no path"),
        ("-o only_owner=7 /nowhere", 32, "/nowhere"),
        ("-o only_owner=7,audit,log=/srv/swarm/log /srv/swarm", 32, "/srv/swarm/log"),
        ("-f -o ownr=7 /srv/swarm", 1, "-o ownr=7 is not an option"),
    ] {
        let done = root.run(&format!("mount -t swarmletfs {arguments} /mnt/swarm"));
        assert_eq!(done.code, Some(code), "{arguments}: {done:#?}");
        let is_one_message = done.err.lines().filter(|line| line.starts_with("swarmletfs: "));
        assert_eq!(is_one_message.count(), 1, "{arguments}: {done:#?}");
        assert!(done.err.contains(named), "{arguments}: {done:#?}");
    }
    let usage = root.run("mount.swarmletfs /srv/swarm");
    assert_eq!(usage.code, Some(1), "{usage:#?}");
    assert_eq!(root.mounts(), "");
}
