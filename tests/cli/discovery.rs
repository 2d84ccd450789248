//! Discovery of the store, and the message about it.

use std::fs;
use std::path::Path;

use super::program::{
    MountSandbox, mount_count_at, run, small_store, swarmletfs, umount, with_log,
};
use crate::needs_fuse;
use crate::support::skip;

#[test]
fn store_discovery_follows_its_order_and_prints_the_reason() {
    needs_fuse!();
    let (named, sandbox) = (small_store(), MountSandbox::new());
    let (here, variable) = (small_store(), small_store());
    fs::create_dir_all(here.at("workers/w1/outputs/deep")).unwrap();
    let point = sandbox.folder("mnt");
    let at = |path: &str| here.at(path);
    // Options, the current directory, the chosen store, and the reason.
    let cases = [
        (Some(&named), true, at("workers"), named.path(), "(named by --store)"),
        (None, true, at("workers"), variable.path(), "(named by $SWARMLET_DATA_PATH)"),
        (None, false, here.path(), here.path(), "(the current folder)"),
        (None, false, at("workers"), here.path(), "(the current folder is inside it)"),
        (
            None,
            false,
            at("workers/w1/outputs/deep"),
            here.path(),
            "(the current folder is inside it)",
        ),
    ];
    for (option, with_variable, current, chosen, why) in cases {
        let mut command = with_log(swarmletfs(["mount"]), &point);
        if let Some(store) = option {
            command.arg("--store").arg(store.path());
        }
        if with_variable {
            command.env("SWARMLET_DATA_PATH", variable.path());
        }
        command.arg(&point).current_dir(current);
        let done = run(command);
        done.assert_success();
        let expected = format!("swarmletfs: the store is {} {why}\n", chosen.display());
        assert!(done.err.starts_with(&expected), "{expected} is not in {done:#?}");
        umount(&point, &[]).assert_success();
    }
}

#[test]
fn variable_with_an_invalid_store_is_an_error() {
    needs_fuse!();
    let (here, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut command = swarmletfs(["mount"]);
    command.arg(&point).current_dir(here.path()).env("SWARMLET_DATA_PATH", "/no/such/place");
    run(command).assert_failure(1, &["/no/such/place", "$SWARMLET_DATA_PATH"]);
    assert_eq!(mount_count_at(&point), 0);
}

#[test]
fn missing_store_error_lists_the_searched_places() {
    needs_fuse!();
    let sandbox = MountSandbox::new();
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    let point = sandbox.folder("mnt");
    // Not below this test's directory: other users' files could make an ancestor look like a store.
    let mut command = swarmletfs(["mount"]);
    command.arg(&point).current_dir("/");
    run(command)
        .assert_failure(1, &["no store", "SWARMLET_DATA_PATH", "/data/swarmlet", "--store"]);
    assert_eq!(mount_count_at(&point), 0);
}

/// Promise: Sessions are discovered if there is no other store.
#[test]
fn sessions_are_discovered_without_another_store() {
    needs_fuse!();
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    let (sandbox, store) = (MountSandbox::new(), small_store());
    let (home, point) = (sandbox.folder("home"), sandbox.folder("mnt"));
    let project = sandbox.folder("home/.claude/projects/-home-dev");
    let line = r#"{"type":"user","uuid":"u","sessionId":"s","message":{"role":"user","content":"look around"}}"#;
    fs::write(project.join("s.jsonl"), format!("{line}\n")).unwrap();
    let sessions = home.join(".claude");
    let mounted = |variable: Option<&Path>, current: &Path| {
        let mut command = with_log(swarmletfs(["mount"]), &point);
        command
            .arg(&point)
            .current_dir(current)
            .env("HOME", if variable.is_some() { Path::new("/") } else { &home });
        command
            .env_remove("CLAUDE_CONFIG_DIR")
            .envs(variable.map(|folder| ("CLAUDE_CONFIG_DIR", folder)));
        let done = run(command);
        done.assert_success();
        let tasks = fs::read_to_string(point.join("workers/s/task.txt")).ok();
        umount(&point, &[]).assert_success();
        (done.err, tasks)
    };
    for variable in [None, Some(sessions.as_path())] {
        let (message, task) = mounted(variable, Path::new("/"));
        assert!(
            message.contains(&format!(
                "the store is {} (the sessions of Claude Code",
                sessions.display()
            )),
            "{message}"
        );
        assert_eq!(task.as_deref(), Some("look around"));
    }
    let (message, task) = mounted(None, &store.path());
    assert!(message.contains("(the current folder)") && task.is_none(), "{message}");
}

#[test]
fn deleted_current_folder_is_reported() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (point, gone) = (sandbox.folder("mnt"), sandbox.folder("gone"));
    // The shell removes its current directory before it runs the program.
    let script = "cd \"$1\" && rmdir \"$1\" && exec \"$2\" mount --store \"$3\" \"$4\"";
    let mut command = super::program::program("bash", ["-c", script, "bash"]);
    command.arg(&gone).arg(crate::support::mount::PROGRAM).arg(store.path()).arg(&point);
    run(command).assert_failure(1, &["current folder"]);
    assert_eq!(mount_count_at(&point), 0);
}
