//! Discovery of the store, and the message about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::program::{
    MountSandbox, mount_count_at, run, small_store, swarmletfs, umount, with_log,
};
use crate::needs_fuse;
use crate::support::{TestStore, skip};

#[test]
fn store_discovery_follows_its_order_and_prints_the_reason() {
    needs_fuse!();
    let (named, sandbox) = (small_store(), MountSandbox::new());
    let (here, data_path, variable) = (small_store(), small_store(), small_store());
    let data_path = ("SWARMLET_DATA_PATH", data_path.path());
    let variable = ("SWARMLET_STORE", variable.path());
    let empty = ("SWARMLET_STORE", "".into());
    fs::create_dir_all(here.at("workers/w1/outputs/deep")).unwrap();
    let point = sandbox.folder("mnt");
    let at = |path: &str| here.at(path);
    // Options, variables, the current directory, the chosen store, and the reason.
    let cases = [
        (Some(&named), vec![&variable], at("workers"), named.path(), "(named by --store)"),
        (
            None,
            vec![&data_path, &variable],
            at("workers"),
            variable.1.clone(),
            "(named by $SWARMLET_STORE)",
        ),
        (
            None,
            vec![&empty, &data_path],
            at("workers"),
            data_path.1.clone(),
            "(named by $SWARMLET_DATA_PATH)",
        ),
        (None, vec![&empty], here.path(), here.path(), "(the current folder)"),
        (None, vec![], at("workers"), here.path(), "(the current folder is inside it)"),
        (
            None,
            vec![],
            at("workers/w1/outputs/deep"),
            here.path(),
            "(the current folder is inside it)",
        ),
    ];
    for (option, variables, current, chosen, why) in cases {
        let mut command = with_log(swarmletfs(["mount"]), &point);
        if let Some(store) = option {
            command.arg("--store").arg(store.path());
        }
        command.envs(variables.into_iter().map(|(name, value)| (name, value)));
        command.arg(&point).current_dir(current);
        let done = run(command);
        done.assert_success();
        let expected = format!("swarmletfs: the store is {} {why}\n", chosen.display());
        assert!(done.err.starts_with(&expected), "{expected} is not in {done:#?}");
        umount(&point, &[]).assert_success();
    }
}

#[test]
fn a_store_that_is_prepared_for_recording_is_found() {
    let store = TestStore::new();
    let found = || {
        let mut command = swarmletfs(["ls", "workers"]);
        command.current_dir(store.at("workers"));
        run(command)
    };
    fs::create_dir(store.path().join("workers")).unwrap();
    assert!(!found().err.contains("the current folder is inside it"), "{:#?}", found());
    store.write("audit/2026-11-24.jsonl", "{}\n");
    let expected = format!("the store is {} (the current folder", store.path().display());
    assert!(found().err.contains(&expected), "{:#?}", found());
    // A write in progress changes nothing.
    store.write("workers/.swarmletfs-new-w/metadata.json", "{}");
    assert!(found().err.contains(&expected), "{:#?}", found());
    // Other files beside it change nothing, either.
    store.write("src/main.rs", "");
    assert!(found().err.contains(&expected), "{:#?}", found());
    // Any folders of these names do not make a store.
    store.write("audit/report.pdf", "");
    assert!(!found().err.contains(&expected), "{:#?}", found());
}

#[test]
fn variable_with_an_invalid_store_is_an_error() {
    needs_fuse!();
    let (here, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    let mut command = swarmletfs(["mount"]);
    command.arg(&point).current_dir(here.path()).env("SWARMLET_DATA_PATH", "/no/such/place");
    run(command).assert_failure(1, &["/no/such/place", "$SWARMLET_DATA_PATH"]);
    let mut command = swarmletfs(["mount"]);
    command.arg(&point).current_dir(here.path()).env("SWARMLET_STORE", "/no/such/place");
    run(command).assert_failure(1, &["/no/such/place", "$SWARMLET_STORE"]);
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
    run(command).assert_failure(
        1,
        &[
            "no store",
            "$SWARMLET_STORE and $SWARMLET_DATA_PATH are not set",
            "/data/swarmlet",
            "--store",
        ],
    );
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

/// Returns a command that runs the program in `/` with `home` as the home directory, without
/// variables that name the place of a program.
fn at_home<S: AsRef<std::ffi::OsStr>>(
    home: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> std::process::Command {
    let mut command = swarmletfs(arguments);
    command.env("HOME", home);
    for variable in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME"] {
        command.env_remove(variable);
    }
    command
}

/// Writes the transcript of a session into a project of Claude Code's directory `claude`.
fn write_session(claude: &Path, id: &str) {
    let project = claude.join("projects/-home-dev");
    fs::create_dir_all(&project).unwrap();
    let line = serde_json::json!({"type": "user", "uuid": "u", "sessionId": id,
        "message": {"role": "user", "content": format!("the task of {id}")}});
    fs::write(project.join(format!("{id}.jsonl")), format!("{line}\n")).unwrap();
}

/// Promise: All places with sessions are found and shown together.
#[test]
fn all_places_with_sessions_are_mounted_as_one_swarm() {
    needs_fuse!();
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    let sandbox = MountSandbox::new();
    let (home, point) = (sandbox.folder("home"), sandbox.folder("mnt"));
    write_session(&home.join(".claude"), "first");
    write_session(&home.join(".config/claude"), "second");
    // An empty place, and one that cannot be read yet.
    fs::create_dir_all(home.join(".copilot/session-state")).unwrap();
    let mut command = with_log(at_home(&home, ["mount"]), &point);
    command.arg(&point);
    let done = run(command);
    done.assert_success();
    let expected = format!(
        "swarmletfs: the stores are {0}/.claude (the sessions of Claude Code) and \
         {0}/.config/claude (the sessions of Claude Code), as no other store was found\n",
        home.display()
    );
    assert!(done.err.starts_with(&expected), "{done:#?}");
    for id in ["first", "second"] {
        let task = fs::read_to_string(point.join(format!("workers/{id}/task.txt")));
        assert_eq!(task.ok(), Some(format!("the task of {id}")));
        assert!(point.join(format!("by/source/claude-code/{id}")).exists(), "{id}");
    }
    umount(&point, &[]).assert_success();
    let listed = run(at_home(&home, ["ls", "workers"]));
    assert!(listed.assert_success().out.contains("second"), "{listed:#?}");
    assert!(listed.err.contains("the stores are "), "{listed:#?}");
}

/// Promise: `by/source` tells which program wrote a worker's trace.
#[test]
fn sources_of_several_stores_are_told_apart() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let claude = sandbox.folder("claude");
    write_session(&claude, "session");
    let read = |arguments: &[&str]| {
        let mut command = swarmletfs(arguments);
        command.arg("--store").arg(store.path()).arg("--store").arg(&claude);
        run(command).assert_success().out.clone()
    };
    assert_eq!(read(&["ls", "by/source"]), "claude-code\nswarmlet\n");
    assert_eq!(read(&["ls", "by/source/claude-code"]), "session\n");
    assert_eq!(read(&["ls", "by/source/swarmlet"]), "w1\n");
    let index: serde_json::Value = serde_json::from_str(&read(&["cat", "index.json"])).unwrap();
    let formats: Vec<_> = index["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["id"].as_str().unwrap(), row["format"].as_str().unwrap()))
        .collect();
    assert_eq!(formats, [("session", "claude-code"), ("w1", "swarmlet")]);
    let summary = read(&["cat", "summary"]);
    let row = |id: &str| summary.lines().find(|line| line.starts_with(id)).unwrap().to_owned();
    assert!(row("session").contains(" claude-code "), "{summary}");
    assert!(row("w1").contains(" swarmlet "), "{summary}");
    let one = run({
        let mut command = swarmletfs(["cat", "summary", "--store"]);
        command.arg(store.path());
        command
    });
    assert!(!one.assert_success().out.contains("source"), "{one:#?}");
}

#[test]
fn format_option_names_the_formats_and_forces_one() {
    let store = small_store();
    write_session(&store.path(), "session");
    let read = |format: &str| {
        let mut command = swarmletfs(["ls", "workers", "--format", format, "--store"]);
        command.arg(store.path());
        run(command)
    };
    assert!(read("claude-code").assert_success().out.contains("session"));
    assert!(read("swarmlet").assert_success().out.contains("w1"));
    read("other").assert_failure(2, &["'other'", "swarmlet, atif, inspect-ai"]);
    let mut command = swarmletfs(["mount", "-o", "format=other", "/no/such/point"]);
    command.arg("--store").arg(store.path());
    run(command).assert_failure(
        2,
        &["-o format=other: invalid value 'other'", "codex, claude-code]\nswarmletfs: see"],
    );
    let mut command = swarmletfs(["ls", "--format", "claude-code", "--store"]);
    command.arg(store.at("workers"));
    run(command).assert_failure(1, &["no workers in", "expected transcripts of Claude Code"]);
    // `expand` has another option of this name.
    let mut command = swarmletfs(["expand", "--store-format", "other", "--store"]);
    command.arg(store.path());
    run(command).assert_failure(2, &["swarmlet, atif, inspect-ai"]);
    // Without a store, only the places of the format's program are used.
    let sandbox = MountSandbox::new();
    let home = sandbox.folder("home");
    write_session(&home.join(".claude"), "at-home");
    let mut command = at_home(&home, ["ls", "workers", "--format", "claude-code"]);
    command.current_dir(store.path());
    assert!(run(command).assert_success().out.contains("at-home"));
}

#[test]
fn single_transcript_can_be_mounted() {
    needs_fuse!();
    let sandbox = MountSandbox::new();
    let (claude, point) = (sandbox.folder("claude"), sandbox.folder("mnt"));
    write_session(&claude, "one");
    write_session(&claude, "other");
    let file = claude.join("projects/-home-dev/one.jsonl");
    let mut command = with_log(swarmletfs(["mount"]), &point);
    command.arg("--store").arg(&file).arg(&point);
    let done = run(command);
    done.assert_success();
    assert!(done.err.contains(&format!("the store is {} (", file.display())), "{done:#?}");
    let ids: Vec<_> = fs::read_dir(point.join("workers"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("index.json"))
        .collect();
    assert_eq!(ids, ["one"]);
    umount(&point, &[]).assert_success();
    let notes = claude.join("notes.jsonl");
    fs::write(&notes, "{}\n").unwrap();
    let mut command = swarmletfs(["ls", "--store"]);
    command.arg(&notes);
    run(command).assert_failure(1, &["or Claude Code"]);
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

/// Promise: The first `run` in a workspace makes a store for it in the user's state, and every
/// command in the workspace finds it.
#[test]
fn first_run_makes_the_store_of_its_workspace() {
    let sandbox = MountSandbox::new();
    let (work, other) = (sandbox.folder("work/src"), sandbox.folder("other"));
    let (home, elsewhere) = (sandbox.folder("home"), sandbox.folder("elsewhere"));
    let at = |folder: &Path, arguments: &[&str]| {
        let mut command = at_home(&home, arguments);
        command.env_remove("XDG_STATE_HOME").current_dir(folder);
        run(command)
    };
    let none = at(&elsewhere, &["worker", "create"]);
    none.assert_failure(1, &["no store was found", "`swarmletfs init DIR`", "`swarmletfs run`"]);
    let workspace = work.parent().unwrap();
    let done = at(workspace, &["run", "--id", "w", "--", "sh", "-c", "echo x > new"]);
    let said = done.assert_success().err.matches("made the store ").count();
    assert_eq!(said, 1, "{done:#?}");
    let again = at(&work, &["run", "--workspace", "..", "--id", "v", "--", "true"]);
    assert!(!again.assert_success().err.contains("made the store"), "{again:#?}");
    assert!(again.err.contains("(made for the workspace "), "{again:#?}");
    for (folder, arguments) in [
        (&*work, &["changes", "w", "--name-only"][..]),
        (workspace, &["ls", "workers"]),
        (workspace, &["worker", "show", "w"]),
    ] {
        let found = at(folder, arguments);
        assert!(found.assert_success().out.contains(if arguments[0] == "changes" {
            "new"
        } else {
            "w"
        }));
    }
    // A workspace that is named has a store of its own, and its name says whose.
    let named = ["run", "--workspace", other.to_str().unwrap(), "--", "true"];
    at(&elsewhere, &named).assert_success();
    let stores = home.join(".local/state/swarmletfs/workspaces");
    let mut names: Vec<String> = fs::read_dir(&stores)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0].starts_with("other-") && names[1].starts_with("work-"), "{names:?}");
    assert_eq!(fs::metadata(&stores).unwrap().permissions().mode() & 0o777, 0o700);
    // A command sees no store of another workspace.
    let look = ["run", "--", "sh", "-c", "find ~/.local/state/swarmletfs/workspaces"];
    let seen = at(workspace, &look);
    assert!(seen.assert_success().out.contains("/work-"), "{seen:#?}");
    assert!(!seen.out.contains("other-"), "{seen:#?}");
    at(&elsewhere, &["changes", "w"]).assert_failure(1, &["no store was found"]);
    // Without a home there is no place for one.
    let mut homeless = swarmletfs(["run", "--", "true"]);
    homeless.env_remove("HOME").env_remove("XDG_STATE_HOME").current_dir(&elsewhere);
    run(homeless).assert_failure(125, &["neither $XDG_STATE_HOME nor $HOME is set", "--store"]);
}

/// Promise: All places with sessions are found and shown together.
#[test]
fn sessions_of_every_program_are_found_at_home() {
    if ["/data/swarmlet", "/data/workers"].iter().any(|place| Path::new(place).exists()) {
        skip("this machine has a store at a known path");
        return;
    }
    let sandbox = MountSandbox::new();
    let home = sandbox.folder("home");
    let sessions = [
        (
            ".copilot/session-state/s/events.jsonl",
            r#"{"type":"session.start","data":{"sessionId":"s"}}"#,
        ),
        (
            ".cursor/projects/p/agent-transcripts/s/s.jsonl",
            r#"{"role":"user","message":{"content":"look"}}"#,
        ),
        (".cline/data/sessions/s/s.messages.json", r#"{"sessionId":"s","messages":[]}"#),
        (".pi/agent/sessions/p/x_s.jsonl", r#"{"type":"session","id":"s","cwd":"/p"}"#),
        (".omp/agent/sessions/p/x_s.jsonl", r#"{"type":"session","id":"o","cwd":"/p"}"#),
        (".factory/sessions/p/s.jsonl", r#"{"type":"session_start","id":"s","cwd":"/p"}"#),
        (
            ".qwen/projects/p/chats/s.jsonl",
            r#"{"uuid":"u","sessionId":"s","type":"user","message":{"role":"user","parts":[{"text":"look"}]}}"#,
        ),
    ];
    for (path, line) in sessions {
        let file = home.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{line}\n")).unwrap();
    }
    let databases = [
        (
            ".crush/crush.db",
            "CREATE TABLE sessions(id TEXT, prompt_tokens INTEGER);
             CREATE TABLE messages(session_id TEXT, parts TEXT);",
        ),
        (
            ".local/share/goose/sessions/sessions.db",
            "CREATE TABLE sessions(id TEXT, working_dir TEXT);
             CREATE TABLE messages(session_id TEXT, content_json TEXT);",
        ),
    ];
    for (path, schema) in databases {
        let file = home.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let connection = rusqlite::Connection::open(file).unwrap();
        connection.execute_batch(schema).unwrap();
        connection.execute("INSERT INTO sessions(id) VALUES ('one')", []).unwrap();
    }
    let done = run(at_home(&home, ["ls", "by/source"]));
    let found = "cline\ncopilot-cli\ncrush\ncursor\ndroid\ngoose\npi\nqwen-code\n";
    assert_eq!(done.assert_success().out, found, "{}", done.err);
    assert!(done.err.contains(".omp/agent/sessions (the sessions of pi)"), "{}", done.err);
    run(at_home(&home, ["validate", home.join(".qwen").to_str().unwrap()])).assert_success();
}
