//! `--quiet` silences messages that only inform, and no errors or warnings.

use super::program::{
    MountSandbox, mount_count_at, run, small_store, swarmletfs, umount, with_log,
};
use crate::needs_fuse;

#[test]
fn quiet_commands_print_only_their_answer() {
    let store = small_store();
    for arguments in [
        &["list", "-q"][..],
        &["show", "-q", "w1"],
        &["log", "-q", "w1"],
        &["ls", "-q"],
        &["ls", "--quiet", "workers"],
        &["tree", "-q"],
        &["stat", "-q"],
        &["cat", "-q", "summary"],
        &["grep", "-q", "true"],
        &["search", "-q", "true"],
        &["since", "-q", "0"],
        &["audit", "-q"],
        &["expand", "-q"],
        &["wait", "-q", "--until", "any", "--since", "0"],
    ] {
        let mut command = swarmletfs(arguments);
        command.env("SWARMLET_STORE", store.path());
        let quiet = run(command);
        assert_eq!(quiet.assert_success().err, "", "{arguments:?}");
        let loud = arguments.iter().filter(|argument| !matches!(**argument, "-q" | "--quiet"));
        let mut command = swarmletfs(loud);
        command.env("SWARMLET_STORE", store.path());
        let loud = run(command);
        assert!(loud.assert_success().err.contains("the store is"), "{arguments:?}: {loud:#?}");
        assert_eq!(quiet.out, loud.out, "{arguments:?}");
    }
}

#[test]
fn quiet_commands_print_errors() {
    let store = small_store();
    let mut command = swarmletfs(["cat", "-q", "missing"]);
    command.env("SWARMLET_STORE", store.path());
    assert_eq!(
        run(command).assert_failure(1, &[]).err,
        "swarmletfs: missing: no such file or folder in this view\n"
    );
    run(swarmletfs(["ls", "-q", "--store", "/missing"])).assert_failure(1, &["/missing"]);
}

#[test]
fn quiet_mount_prints_nothing() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut command = with_log(swarmletfs(["mount", "-q"]), &point);
    command.arg(store.path()).arg(&point);
    assert_eq!(run(command).assert_success().err, "");
    assert_eq!(mount_count_at(&point), 1);
    let other = small_store();
    for change in ["attach", "detach"] {
        let mut command = swarmletfs([change, "-q"]);
        command.arg(&point).arg(other.path());
        assert_eq!(run(command).assert_success().err, "");
    }
    umount(&point, &[]).assert_success();
}
