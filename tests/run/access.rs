//! What a command can reach: its record, the paths of the options, and the folders of its preset.
//!
//! Programs that would run with the rights of the worker's user.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::{fs, thread};

use super::workspace::Workspace;
use crate::cli::program::{CommandOutput, run};
use crate::support::mount::PROGRAM;
use crate::support::python::any_python;

#[test]
fn variables_name_the_worker_and_the_store() {
    for place in Workspace::all() {
        for (id, options) in [("a", &[][..]), ("b", &["--no-sandbox"])] {
            let options = [options, &["--id", id]].concat();
            let done = place.sh(&options, "echo $SWARMLET_WORKER $SWARMLET_STORE");
            assert_eq!(done.out, format!("{id} {}\n", place.at("store").display()));
        }
    }
}

/// Variables of the caller that hold tokens.
const TOKENS: [&str; 5] = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GITHUB_TOKEN",
    "OPENAI_API_KEY",
    "SSH_AUTH_SOCK",
];

/// Returns the tokens that a command finds in its environment.
fn tokens(place: &Workspace, options: &[&str]) -> (Vec<String>, CommandOutput) {
    let mut command = place.runner(options, &["env"]);
    command.envs(TOKENS.map(|name| (name, "secret"))).env("LC_TIME", "C.UTF-8");
    command.env("TMPDIR", "/var/tmp");
    let done = run(command);
    done.assert_success();
    let has = |name: &&str| done.out.lines().any(|line| line == format!("{name}=secret"));
    let found = TOKENS.into_iter().filter(has).map(str::to_owned).collect();
    (found, done)
}

/// `run` passes on no token, but those of the program of its preset and those that the
/// user names.
#[test]
fn tokens_are_passed_on_by_request_only() {
    for place in Workspace::all() {
        let (all, done) = tokens(&place, &["--id", "control", "--no-sandbox"]);
        assert_eq!(all, TOKENS, "{done:#?}");
        let (none, done) = tokens(&place, &["--id", "a"]);
        assert_eq!(none, [""; 0], "{done:#?}");
        for line in ["LC_TIME=C.UTF-8", "TMPDIR=/tmp", "SWARMLET_WORKER=a"] {
            assert!(done.out.lines().any(|shown| shown == line), "{line}: {done:#?}");
        }
        let (preset, _) = tokens(&place, &["--id", "b", "--preset", "codex"]);
        assert_eq!(preset, ["OPENAI_API_KEY"]);
        let options = ["--id", "c", "--env", "GITHUB_TOKEN", "--env", "AWS_*", "--env", "NEW=a=b"];
        let more = ["--env", "SWARMLET_WORKER=z", "--env", "NO_SUCH_VARIABLE"];
        let (named, done) = tokens(&place, &[&options[..], &more].concat());
        assert_eq!(named, TOKENS[..3]);
        for line in ["NEW=a=b", "SWARMLET_WORKER=c"] {
            assert!(done.out.lines().any(|shown| shown == line), "{line}: {done:#?}");
        }
        assert!(
            done.err.contains("no variable is passed on for --env NO_SUCH_VARIABLE"),
            "{done:#?}"
        );
    }
}

#[test]
fn commands_record_in_their_sandbox() {
    for place in Workspace::all() {
        place.run(&["--id", "other"], &["true"]).assert_success();
        let audit = fs::read_dir(place.at("store/audit")).unwrap().count();
        let script = format!(
            "{PROGRAM} record -- sh -c 'echo inner; exit 3'
            echo '{{\"role\": \"user\", \"content\": \"hi\"}}' | {PROGRAM} worker message
            echo report | {PROGRAM} worker put outputs/report.md
            echo; ls $SWARMLET_STORE/workers"
        );
        let done = place.sh(&["--quiet"], &script);
        // No message says that the log of changes cannot be written there.
        assert_eq!((&*done.out, &*done.err), ("inner\n\nw\n", ""), "{done:#?}");
        let metrics = place.read("store/workers/w/metrics.jsonl");
        assert!(metrics.contains("\"exit_code\":3"), "{metrics}");
        assert_eq!(place.read("store/workers/w/tool_calls/001_sh.txt"), "inner\n");
        assert_eq!(place.read("store/workers/w/outputs/report.md"), "report\n");
        assert!(place.read("store/workers/w/thread.jsonl").contains("\"hi\""));
        assert_eq!(fs::read_dir(place.at("store/audit")).unwrap().count(), audit);
    }
}

#[test]
fn paths_can_be_made_writable() {
    for place in Workspace::all() {
        let outside = place.at("outside");
        let script = format!("echo new > {}/new", outside.display());
        let refused = place.sh(&["--id", "control"], &script);
        assert_ne!(refused.code, Some(0), "{refused:#?}");
        assert!(!outside.join("new").exists());
        let options = ["--write", outside.to_str().unwrap()];
        place.sh(&options, &script).assert_success();
        assert_eq!(place.read("outside/new"), "new\n");
    }
}

#[test]
fn memory_can_be_limited() {
    let place = Workspace::of_ordinary_user();
    let script = "head -c 300M /dev/zero | tail -c 200M > /dev/null";
    place.sh(&["--id", "control"], script).assert_success();
    let done = place.sh(&["--memory", "100M"], script);
    assert_ne!(done.code, Some(0), "{done:#?}");
    let is_named = done.err.contains("--memory holds for each process by itself");
    assert!(!done.err.contains("--pids") && is_named == done.err.contains("group"), "{done:#?}");
    place.sh(&["--id", "w2", "--memory", "100M", "--pids", "100"], "true").assert_success();
}

/// A script that connects to the socket in its first argument.
const CONNECT: &str = "import socket, sys\n\
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n";

#[test]
fn socket_of_the_ssh_agent_is_admitted_on_request() {
    let Some(python) = any_python() else { return };
    let place = Workspace::new();
    let path = place.at("outside/agent");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let script = [python.to_str().unwrap(), "-c", CONNECT, path.to_str().unwrap()];
    let run = |options: &[&str]| {
        let mut command = place.runner(options, &script);
        command.env("SSH_AUTH_SOCK", &path);
        crate::cli::program::run(command)
    };
    let refused = run(&["--id", "control", "--quiet"]);
    assert_ne!(refused.code, Some(0), "{refused:#?}");
    run(&["--id", "a", "--ssh-agent"]).assert_success();
    run(&["--id", "b", "--socket", path.to_str().unwrap()]).assert_success();
}

/// A program that replaces its settings by a rename, as Claude Code does, and keeps a session.
const CLAUDE: &str = "set -e
    dir=${CLAUDE_CONFIG_DIR:-$HOME}
    grep -q token $dir/.claude.json
    echo '{\"token\": 2}' > $dir/.claude.json.tmp
    mv $dir/.claude.json.tmp $dir/.claude.json
    mkdir -p $HOME/.claude/projects/p
    echo '{}' > $HOME/.claude/projects/p/s.jsonl
    ! echo x > $HOME/.profile";

#[test]
fn preset_of_claude_lets_it_write_its_state_only() {
    for place in Workspace::all() {
        place.write("home/.claude.json", "{\"token\": 1}\n");
        let refused = place.sh(&["--id", "control", "--quiet"], CLAUDE);
        assert_ne!(refused.code, Some(0), "{refused:#?}");
        place.sh(&["--preset", "claude"], CLAUDE).assert_success();
        assert_eq!(place.read("home/.claude/projects/p/s.jsonl"), "{}\n");
        assert_eq!(place.read("home/.claude/.claude.json"), "{\"token\": 2}\n");
        // The file outside of the folder is the user's own.
        assert_eq!(place.read("home/.claude.json"), "{\"token\": 1}\n");
        assert!(!place.at("home/.profile").exists());
        // The settings of the last run are the newer ones.
        place.sh(&["--id", "again", "--preset", "claude"], CLAUDE).assert_success();
    }
}

#[test]
fn presets_write_the_folder_that_a_variable_names() {
    let place = Workspace::of_ordinary_user();
    for (preset, variable, folder) in [
        ("claude", "CLAUDE_CONFIG_DIR", "outside/claude"),
        ("codex", "CODEX_HOME", "outside/codex"),
        ("codex", "UNUSED", "home/.codex"),
        ("gemini", "UNUSED", "home/.gemini"),
    ] {
        let path = place.at(folder);
        let script = format!("echo {preset} > {0}/state && ! echo x > {0}/../x", path.display());
        let id = format!("{preset}-{variable}");
        let options = ["--quiet", "--preset", preset, "--id", &id];
        let mut command = place.runner(&options, &["sh", "-c", &script]);
        command.env(variable, &path);
        let done = crate::cli::program::run(command);
        assert_eq!(done.code, Some(0), "{id}: {done:#?}");
        assert_eq!(place.read(&format!("{folder}/state")), format!("{preset}\n"));
    }
}

#[test]
fn workspace_within_a_repository_is_told() {
    let place = Workspace::new();
    let told = "is inside the git repository";
    place.folder(".git");
    let without_ceiling = |id: &str| {
        let mut runner = place.runner(&["--id", id], &["true"]);
        runner.env_remove("GIT_CEILING_DIRECTORIES");
        run(runner).assert_success().err.clone()
    };
    let top = place.at("").canonicalize().unwrap();
    let told_top = format!("{told} {}, so git does not work in it", top.display());
    let err = without_ceiling("w1");
    assert!(err.contains(&told_top), "{err}");
    // Git does not look there, or finds a repository of its own.
    let done = place.sh(&["--id", "w2"], "true");
    assert!(!done.err.contains(told), "{done:#?}");
    place.folder("workspace/.git");
    let err = without_ceiling("w3");
    assert!(!err.contains(told), "{err}");
}

#[test]
fn hidden_link_is_told() {
    let place = Workspace::new();
    symlink("notes", place.at("workspace/link")).unwrap();
    let done = place.sh(&["--hide", "workspace/link"], "test ! -e link && cat notes");
    done.assert_success();
    let expected = "workspace/link is a link: --hide does not hide its target";
    assert!(done.err.contains(expected), "{done:#?}");
}

#[test]
fn program_in_the_private_folder_is_told() {
    let place = Workspace::new();
    let outside = tempfile::tempdir_in("/tmp").unwrap();
    let tool = outside.path().join("tool");
    fs::write(&tool, "#!/bin/sh\necho works\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = outside.path().to_str().unwrap();
    let cure = format!("put it in the workspace, or add --write {folder}");
    let missing = place.run(&["--id", "w1"], &[tool.to_str().unwrap()]);
    missing.assert_failure(127, &[&cure]);
    let mut runner = place.runner(&["--id", "w2"], &["tool"]);
    runner.env("PATH", format!("{folder}:/usr/bin:/bin"));
    run(runner).assert_failure(127, &[&cure]);
    let done = place.run(&["--id", "w3", "--write", folder], &[tool.to_str().unwrap()]);
    assert_eq!(done.out, "works\n", "{done:#?}");
    let other = place.sh(&["--id", "w4"], "exit 127");
    assert!(!other.err.contains("--write"), "{other:#?}");
}

/// No file of a worker's directory has a setuid or setgid bit after the worker's end, also where no
/// wall kept them from being made.
#[test]
fn bits_are_removed_from_the_directory_of_a_worker() {
    for place in Workspace::all() {
        let script = "cd $SWARMLET_STORE/workers/w
            mkdir -p outputs/closed
            cp /bin/true outputs/closed/true; chmod 6755 outputs/closed/true
            stat -c %a outputs/closed/true
            chmod 0 outputs/closed";
        let done = place.sh(&["--no-sandbox"], script);
        done.assert_success();
        assert_eq!(done.out, "6755\n");
        let note = "setuid and setgid bits were removed from files in the worker's directory: \
                    outputs/closed/true";
        assert!(done.err.contains(note), "{done:#?}");
        assert_eq!(place.json("store/workers/w/changes.json")["notes"][0], note);
        let program = std::fs::metadata(place.at("store/workers/w/outputs/closed/true")).unwrap();
        assert_eq!(program.permissions().mode() & 0o7777, 0o755);
    }
}
