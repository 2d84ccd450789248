//! The units of the package, by a systemd that runs.

use super::clean_root::CleanRoot;

/// Settings of `swarmletfs@swarm.service`, and a restart without a wait.
const SETTINGS: &str = r"
mkdir -p /etc/swarmletfs /etc/systemd/system/swarmletfs@.service.d
cp /usr/share/doc/swarmletfs/examples/swarm.conf /etc/swarmletfs/
printf '[Service]\nRestartSec=50ms\n' > /etc/systemd/system/swarmletfs@.service.d/fast.conf
systemctl daemon-reload
";

fn booted() -> Option<CleanRoot> {
    let root = CleanRoot::boot()?;
    root.install();
    Some(root)
}

#[test]
#[ignore = "only in scripts/check --all"]
fn systemd_finds_no_fault_in_the_units() {
    let Some(root) = booted() else { return };
    root.output(SETTINGS);
    for verify in [
        "systemd-analyze verify --man=yes swarmletfs@swarm.service",
        "XDG_RUNTIME_DIR=/run systemd-analyze verify --user --man=yes /usr/lib/systemd/user/swarmletfs-*",
    ] {
        let done = root.run(verify);
        assert_eq!((done.code, &*done.out, &*done.err), (Some(0), "", ""), "{verify}");
    }
}

/// Promise: A line of /etc/fstab is mounted by systemd, at the boot or at the first access.
#[test]
#[ignore = "only in scripts/check --all"]
fn systemd_mounts_by_fstab() {
    let Some(root) = booted() else { return };
    root.output(
        "mkdir /mnt/boot
        echo '/srv/swarm /mnt/boot swarmletfs only_owner=7,allow_other,nofail 0 0
        /srv/swarm /mnt/auto swarmletfs all_owners,nofail,x-systemd.automount 0 0' > /etc/fstab
        systemctl daemon-reload
        systemctl start local-fs.target mnt-boot.mount",
    );
    let active = "systemctl is-active mnt-boot.mount mnt-auto.mount || :";
    assert_eq!(root.output(active), "active\ninactive\n");
    assert_eq!(root.output("cat /mnt/boot/workers/w1/result.txt"), "done");
    assert_eq!(root.output("cat /mnt/auto/workers/w1/result.txt"), "done");
    assert_eq!(root.output(active), "active\nactive\n");
    root.output("systemctl stop mnt-boot.mount mnt-auto.automount");
    assert_eq!(root.mounts(), "");
    root.output("while grep --quiet swarmletfs /proc/*/comm; do sleep 0.05; done");
}

/// Promise: `swarmletfs@NAME.service` has started when its mount can be read, and the mount is gone
/// when it has stopped.
#[test]
#[ignore = "only in scripts/check --all"]
fn service_is_active_while_its_mount_can_be_read() {
    let Some(root) = booted() else { return };
    root.output(SETTINGS);
    root.output("systemctl enable --now swarmletfs@swarm.service");
    // Readable at once, by every process and user.
    let as_other = "setpriv --reuid=65534 --clear-groups cat /mnt/swarm/workers/w1/result.txt";
    assert_eq!(root.output(as_other), "done");
    let status = root.output("systemctl show --property ActiveState,StatusText swarmletfs@swarm");
    assert_eq!(status, "StatusText=1 worker in 1 run\nActiveState=active\n");
    let journal = root.output("journalctl --boot --unit swarmletfs@swarm --output cat");
    assert!(!journal.contains("WARN") && !journal.contains("not confined"), "{journal}");
    root.output("systemctl stop swarmletfs@swarm");
    assert_eq!(root.mounts(), "");
    root.output("! systemctl is-failed swarmletfs@swarm");
    assert_eq!(root.output("ls /mnt/swarm"), "");
}

/// Promise: A service whose process was killed leaves no dead mount.
#[test]
#[ignore = "only in scripts/check --all"]
fn killed_service_leaves_no_dead_mount() {
    let Some(root) = booted() else { return };
    root.output(SETTINGS);
    root.output("systemctl start swarmletfs@swarm");
    root.output("systemctl kill --signal KILL swarmletfs@swarm");
    root.output("until cat /mnt/swarm/workers/w1/result.txt 2> /dev/null; do sleep 0.05; done");
    assert_eq!(root.mounts(), "/mnt/swarm\n");
    // If it is not started again, the service itself removes the dead mount.
    root.output(
        "printf '[Service]\\nRestart=no\\n' > /etc/systemd/system/swarmletfs@.service.d/fast.conf
        systemctl daemon-reload
        systemctl kill --signal KILL swarmletfs@swarm
        until systemctl is-failed swarmletfs@swarm; do sleep 0.05; done",
    );
    assert_eq!(root.mounts(), "");
}

/// A line of a transcript of Claude Code.
const SESSION: &str = r#"{"type": "user", "uuid": "u1", "parentUuid": null, "sessionId":
 "0a1b2c3d-0000-4000-8000-000000000001", "cwd": "/w", "timestamp": "2026-01-20T10:00:01.000Z",
 "version": "2.0.0", "message": {"role": "user", "content": "Check the backups"}}"#;

#[test]
#[ignore = "only in scripts/check --all"]
fn timer_of_a_user_archives_sessions() {
    let Some(root) = booted() else { return };
    let file = "projects/-w/0a1b2c3d-0000-4000-8000-000000000001.jsonl";
    root.output(&format!(
        "mkdir -p ~/.claude/projects/-w
        echo '{}' > ~/.claude/{file}
        loginctl enable-linger root
        export XDG_RUNTIME_DIR=/run/user/0
        until [ -S $XDG_RUNTIME_DIR/systemd/private ]; do sleep 0.05; done
        systemctl --user enable --now swarmletfs-archive.timer
        systemctl --user start swarmletfs-archive.service
        cmp ~/.claude/{file} ~/.local/share/swarmletfs/sessions/claude/{file}",
        SESSION.replace('\n', "")
    ));
}

#[test]
#[ignore = "only in scripts/check --all"]
fn service_with_a_mistake_fails_with_its_reason() {
    let Some(root) = booted() else { return };
    root.output(SETTINGS);
    root.output("echo OPTIONS=--ownr=7 >> /etc/swarmletfs/swarm.conf");
    root.output("! systemctl start swarmletfs@swarm && systemctl is-failed swarmletfs@swarm");
    let journal = root.output("journalctl --boot --unit swarmletfs@swarm --output cat");
    assert!(journal.contains("unexpected argument '--ownr'"), "{journal}");
    root.output("! systemctl start swarmletfs@nothing");
}

/// Promise: Removing the package stops its services, and purging it removes what they wrote.
#[test]
#[ignore = "only in scripts/check --all"]
fn removed_package_leaves_no_mount_and_no_state() {
    let Some(root) = booted() else { return };
    root.output(SETTINGS);
    root.output("echo 'OPTIONS=--owner 7 --audit' >> /etc/swarmletfs/swarm.conf");
    root.output("systemctl enable --now swarmletfs@swarm && cat /mnt/swarm/summary");
    root.output("ls -d /var/lib/swarmletfs/* /var/cache/swarmletfs");
    root.output("dpkg --remove swarmletfs");
    assert_eq!(root.mounts(), "");
    root.output("ls -d /var/lib/swarmletfs/*");
    root.output("dpkg --purge swarmletfs");
    let left = "find / -xdev -name '*swarmletfs*' -not -path '/proc/*' -not -path '/var/l*' -not -path '/run/*'";
    assert_eq!(
        root.output(left),
        "/etc/systemd/system/swarmletfs@.service.d\n/etc/swarmletfs\n/swarmletfs.deb\n"
    );
}
