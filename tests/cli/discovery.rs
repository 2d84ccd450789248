//! Which store is meant where none is named, and that it is said.

use std::fs;
use std::path::Path;

use super::program::{Yard, logged, ours_at, run, small_store, typed, umount};
use crate::needs_fuse;
use crate::support::skip;

#[test]
fn the_store_is_found_in_one_order_and_said_with_its_reason() {
    needs_fuse!();
    let (named, yard) = (small_store(), Yard::new());
    let (here, variable) = (small_store(), small_store());
    fs::create_dir_all(here.at("workers/w1/outputs/deep")).unwrap();
    let point = yard.folder("mnt");
    let at = |path: &str| here.at(path);
    // Options, the current folder, and what is chosen and why.
    let cases = [
        (Some(&named), true, at("workers"), named.path(), "(named by --store)"),
        (None, true, at("workers"), variable.path(), "(named by $SWARMLET_DATA_PATH)"),
        (None, false, here.path(), here.path(), "(the current folder)"),
        (None, false, at("workers"), here.path(), "(the current folder is inside it)"),
        (None, false, at("workers/w1/outputs/deep"), here.path(), "(the current folder is inside it)"),
    ];
    for (option, with_variable, current, chosen, why) in cases {
        let mut command = logged(typed(["mount"]), &point);
        if let Some(store) = option {
            command.arg("--store").arg(store.path());
        }
        if with_variable {
            command.env("SWARMLET_DATA_PATH", variable.path());
        }
        command.arg(&point).current_dir(current);
        let done = run(command);
        done.fine();
        let said = format!("swarmletfs: the store is {} {why}\n", chosen.display());
        assert!(done.err.starts_with(&said), "{said} is not in {done:#?}");
        umount(&point, &[]).fine();
    }
}

#[test]
fn a_variable_that_names_no_store_is_an_error_and_not_passed_over() {
    needs_fuse!();
    let (here, yard) = (small_store(), Yard::new());
    let point = yard.folder("mnt");
    let mut command = typed(["mount"]);
    command.arg(&point).current_dir(here.path()).env("SWARMLET_DATA_PATH", "/no/such/place");
    run(command).refused(1, &["/no/such/place", "$SWARMLET_DATA_PATH"]);
    assert_eq!(ours_at(&point), 0);
}

#[test]
fn no_store_at_all_is_a_sentence_that_lists_where_it_was_looked_for() {
    needs_fuse!();
    let yard = Yard::new();
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    let point = yard.folder("mnt");
    // Not from a folder of this test upwards: what others put beside it could make a store of what is above.
    let mut command = typed(["mount"]);
    command.arg(&point).current_dir("/");
    run(command).refused(1, &["no store", "SWARMLET_DATA_PATH", "/data/swarmlet", "--store"]);
    assert_eq!(ours_at(&point), 0);
}

#[test]
fn sessions_are_found_by_themselves_where_there_is_no_other_store() {
    needs_fuse!();
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    let (yard, store) = (Yard::new(), small_store());
    let (home, point) = (yard.folder("home"), yard.folder("mnt"));
    let project = yard.folder("home/.claude/projects/-home-dev");
    let line = r#"{"type":"user","uuid":"u","sessionId":"s","message":{"role":"user","content":"look around"}}"#;
    fs::write(project.join("s.jsonl"), format!("{line}\n")).unwrap();
    let sessions = home.join(".claude");
    let mounted = |variable: Option<&Path>, current: &Path| {
        let mut command = logged(typed(["mount"]), &point);
        command.arg(&point).current_dir(current).env("HOME", if variable.is_some() { Path::new("/") } else { &home });
        command.env_remove("CLAUDE_CONFIG_DIR").envs(variable.map(|folder| ("CLAUDE_CONFIG_DIR", folder)));
        let done = run(command);
        done.fine();
        let tasks = fs::read_to_string(point.join("workers/s/task.txt")).ok();
        umount(&point, &[]).fine();
        (done.err, tasks)
    };
    for variable in [None, Some(sessions.as_path())] {
        let (said, task) = mounted(variable, Path::new("/"));
        assert!(said.contains(&format!("the store is {} (Claude Code's sessions", sessions.display())), "{said}");
        assert_eq!(task.as_deref(), Some("look around"));
    }
    let (said, task) = mounted(None, &store.path());
    assert!(said.contains("(the current folder)") && task.is_none(), "{said}");
}

#[test]
fn a_current_folder_that_is_gone_is_said() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let (point, gone) = (yard.folder("mnt"), yard.folder("gone"));
    // The shell removes its own folder before it runs the program.
    let script = "cd \"$1\" && rmdir \"$1\" && exec \"$2\" mount --store \"$3\" \"$4\"";
    let mut command = super::program::plain("bash", ["-c", script, "bash"]);
    command.arg(&gone).arg(crate::support::mount::PROGRAM).arg(store.path()).arg(&point);
    run(command).refused(1, &["current folder"]);
    assert_eq!(ours_at(&point), 0);
}
