//! Runs that are refused, before there is a worker.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::process::{Child, Stdio};

use super::workspace::{ORDINARY, Workspace};
use crate::cli::doctor::ISOLATE_SCRIPT;
use crate::cli::doctor::machine::LANDLOCK_CREATE_RULESET;
use crate::cli::program::{LIMIT, is_root, program, run, tmpfs, wait_timeout};
use crate::support::mount::PROGRAM;
use crate::support::skip;

#[test]
fn usage_errors_exit_with_125() {
    let place = Workspace::new();
    let outside = place.at("outside");
    let outside = outside.to_str().unwrap();
    for (options, reason) in [
        (&["--no-sandbox", "--no-network"][..], "cannot be used with"),
        (&["--no-sandbox", "--hide", "notes"], "cannot be used with"),
        (&["--no-sandbox", "--engine", "overlay"], "cannot make an overlay with --no-sandbox"),
        (&["--hide", outside], "it is not in the workspace"),
        (&["--hide", "workspace"], "cannot hide workspace: it is the workspace"),
        (&["--write", "/"], "cannot use --write /: all files would be writable"),
        (&["--write", "store"], "cannot use --write store: it is in the store"),
        (&["--write", "store/workers"], "cannot use --write store/workers: it is in the store"),
        (&["--write", "workspace"], "it is in the workspace; changes there are recorded"),
        (&["--write", "workspace/notes"], "it is in the workspace; changes there are recorded"),
        (&["--socket", "outside"], "cannot use outside as a socket: it is no socket"),
        (&["--hide", "nothing"], "cannot hide nothing: check the path"),
        (&["--write", "nothing"], "cannot use nothing as a path to write: check the path"),
        (&["--timeout", "0"], "a command needs some time"),
        (&["--preset", "vim"], "invalid value 'vim'"),
    ] {
        place.sh(options, "true").assert_failure(125, &[reason]);
    }
    let root = run(place.command(
        [PROGRAM, "run", "--store", "store", "--workspace", "/", "--", "true"].map(OsStr::new),
    ));
    root.assert_failure(125, &["cannot use / as the workspace"]);
    let missing = run(place.command(
        [PROGRAM, "run", "--store", "store", "--workspace", "gone", "--", "true"].map(OsStr::new),
    ));
    missing.assert_failure(125, &["cannot use gone as the workspace: check the path"]);
    let inner = place.folder("workspace/inner");
    let mut hidden = place.runner(&["--hide", "../inner"], &["true"]);
    hidden.current_dir(&inner);
    run(hidden).assert_failure(125, &["cannot hide ../inner: the command starts in it"]);
    assert_eq!(place.workers(), [""; 0]);
    // In a folder above the store, another one could take its place.
    let above = place.at("");
    let refused = place.sh(&["--write", above.to_str().unwrap()], "true");
    refused.assert_failure(125, &["the store is in it"]);
    // A folder that holds the workspace can be written; the workspace itself stays a view.
    let (store, above) = (place.at("store"), place.folder("outside/above"));
    let workspace = place.folder("outside/above/workspace");
    let words = [PROGRAM, "run", "--quiet"].map(OsStr::new);
    let places = [("--store", &store), ("--workspace", &workspace), ("--write", &above)];
    let places = places.iter().flat_map(|(name, path)| [OsStr::new(name), path.as_os_str()]);
    let script = ["--", "sh", "-c", "echo x > ../above; echo x > new"].map(OsStr::new);
    let mut command = place.command(words.into_iter().chain(places).chain(script));
    command.current_dir(&workspace);
    run(command).assert_success();
    assert!(above.join("above").exists() && !workspace.join("new").exists());
}

/// Promise: A protection that this machine lacks is named, or the run is refused.
#[test]
fn kernel_without_landlock_is_named() {
    if !is_root() {
        return skip("a mount namespace needs root");
    }
    let forbidden = LANDLOCK_CREATE_RULESET.to_string();
    for engine in ["overlay", "copy"] {
        let place = Workspace::new();
        let runner = place.runner(&["--engine", engine], &["touch", "new"]);
        let before = ["--mount", "python3", "-ISc", ISOLATE_SCRIPT, "/", &forbidden];
        let mut command = program("unshare", before);
        command
            .arg(runner.get_program())
            .args(runner.get_args())
            .current_dir(place.at("workspace"));
        let done = run(command);
        done.assert_success();
        let notice = "this kernel has no Landlock, so the command can connect to abstract sockets";
        assert!(done.err.contains(notice), "{done:#?}");
        assert_eq!(place.changes("w"), ["added new"]);
        let known = place.run(&["--id", "v", "--engine", engine], &["true"]);
        assert!(!known.err.contains("Landlock"), "{known:#?}");
    }
}

#[test]
fn machine_without_user_namespaces_refuses_and_names_the_way_out() {
    let place = Workspace::of_ordinary_user();
    let limited = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"";
    let runner = place.runner(&[], &["touch", "new"]);
    let mut command = program("unshare", ["--user", "--map-root-user", "sh", "-c", limited, "sh"]);
    command.arg(runner.get_program()).args(runner.get_args()).current_dir(place.at("workspace"));
    if runner.get_program() == OsStr::new("setpriv") {
        // The namespace has one user.
        command = program("setpriv", [format!("--reuid={ORDINARY}"), "--clear-groups".into()]);
        command.args(["unshare", "--user", "--map-root-user", "sh", "-c", limited, "sh"]);
        let words = runner.get_args().skip_while(|word| *word != OsStr::new(PROGRAM));
        command.args(words).current_dir(place.at("workspace"));
    }
    let refused = run(command);
    refused.assert_failure(125, &["max_user_namespaces", "--no-sandbox"]);
    assert_eq!(place.workers(), [""; 0]);
    assert!(!place.at("workspace/new").exists());
}

#[test]
fn workspace_with_a_mount_point_is_copied() {
    if !is_root() {
        return;
    }
    let place = Workspace::new();
    let mounted = place.folder("workspace/mounted");
    if tmpfs(&mounted).is_none() {
        return;
    }
    // A reason is printed with --quiet, too.
    let done = place.sh(&["--quiet"], "echo new > new");
    let refused = place.sh(&["--id", "w2", "--engine", "overlay"], "true");
    rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::DETACH).unwrap();
    done.assert_success();
    assert!(done.err.contains("runs in a copy of the workspace, not in an overlay"), "{done:#?}");
    assert_eq!(place.json("store/workers/w/changes.json")["engine"], "copy");
    refused.assert_failure(125, &["cannot make an overlay of", "mounted", "--engine copy"]);
    assert_eq!(place.workers(), ["w"]);
}

#[test]
fn root_can_run_everything_as_another_user() {
    if !is_root() {
        return;
    }
    let place = Workspace::of_ordinary_user();
    let runner = place.runner(&["--as", "nobody"], &["sh", "-c", "id -u; echo new > new"]);
    let words = runner.get_args().skip_while(|word| *word != OsStr::new(PROGRAM)).skip(1);
    let mut command = program(PROGRAM, words);
    command.current_dir(place.at("workspace"));
    let done = run(command);
    done.assert_success();
    assert_eq!(done.out, format!("{ORDINARY}\n"));
    assert_eq!(place.changes("w"), ["added new"]);
    let owner = |name: &str| std::fs::metadata(place.at(name)).unwrap().uid();
    assert_eq!(owner("store/workers/w/changes/new"), ORDINARY);
    let unknown = run(program(PROGRAM, ["run", "--as", "no-such-user", "--", "true"]));
    unknown.assert_failure(125, &["there is no such user"]);
}

/// Promise: `run --id` runs a worker that was created and has done nothing, and refuses any other
/// id that is taken.
#[test]
fn created_worker_is_run_unless_it_has_done_something() {
    for place in Workspace::all() {
        let store = place.at("store");
        let command = |words: &[&str]| {
            let words = [PROGRAM].iter().chain(words).map(OsStr::new);
            let mut command = place.command(words.chain(["--store".as_ref(), store.as_os_str()]));
            command.stdin(Stdio::null());
            run(command).assert_success().out.clone()
        };
        for id in ["w", "v"] {
            command(&["worker", "create", "--id", id, "--task", "Fix the notes", "--owner", "7"]);
        }
        let other = place.run(&["--id", "w", "--owner", "8"], &["true"]);
        other.assert_failure(125, &["cannot work as w: it is of another owner or run"]);
        place.sh(&["--id", "w"], "echo new > notes").assert_success();
        assert_eq!(place.changes("w"), ["modified notes"]);
        let metadata = place.metadata("w");
        let facts = ["status", "task", "owner_id"].map(|key| metadata[key].as_str().unwrap());
        assert_eq!(facts, ["completed", "Fix the notes", "7"]);

        let again = place.sh(&["--id", "w"], "echo again > notes");
        again.assert_failure(125, &["cannot create worker w: the id is taken; try another id"]);
        command(&["worker", "record", "v", "--tool", "sh"]);
        let busy = place.run(&["--id", "v"], &["true"]);
        busy.assert_failure(125, &["cannot work as v: it has recorded calls", "try another id"]);
        assert_eq!(place.metadata("v")["status"], "running");
        assert_eq!(place.workers(), ["v", "w"]);
    }
}

/// Two overlays on one upper layer are mounted without an error, so only one run uses a draft.
#[test]
fn of_runs_of_one_worker_at_once_one_runs() {
    for place in Workspace::all() {
        let mut child = place.start(&[], "echo new > new; echo ready; sleep 1000");
        place.sh(&["--id", "w"], "true").assert_failure(125, &["cannot work as w"]);
        place.run(&["--recover", "w"], &[]).assert_failure(1, &["it still runs"]);
        child.kill().unwrap();
        child.wait().unwrap();
        place.run(&["--recover", "w"], &[]).assert_success();

        let store = place.at("store");
        let words = [PROGRAM, "worker", "create", "--id", "v", "--task", "t", "--store"];
        let create = words.map(OsStr::new).into_iter().chain([store.as_os_str()]);
        run(place.command(create)).assert_success();
        let at_once = |id: &dyn Fn(u32) -> String| {
            let start = |number| {
                let script = format!("echo {number} >> made; sleep 1");
                let mut runner = place.runner(&["--id", &id(number)], &["sh", "-c", &script]);
                runner.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            };
            let children: Vec<Child> = (0..6).map(start).collect();
            let wait = |mut child: Child| wait_timeout(&mut child, LIMIT).unwrap().code().unwrap();
            let mut codes: Vec<i32> = children.into_iter().map(wait).collect();
            codes.sort_unstable();
            codes
        };
        assert_eq!(at_once(&|_| "v".to_owned()), [0, 125, 125, 125, 125, 125]);
        assert_eq!(place.read("store/workers/v/changes/made").lines().count(), 1);
        assert_eq!(place.metadata("v")["status"], "completed");
        assert_eq!(at_once(&|number| format!("u{number}")), [0; 6]);
    }
}

#[test]
fn workspace_can_be_named_through_a_link() {
    let place = Workspace::new();
    symlink(place.at("workspace"), place.at("link")).unwrap();
    let link = place.at("link");
    let mut words: Vec<&OsStr> =
        [PROGRAM, "run", "--store", "store", "--id", "w"].map(OsStr::new).to_vec();
    words.extend(["--workspace".as_ref(), link.as_os_str(), "--".as_ref(), "pwd".as_ref()]);
    let done = run(place.command(words));
    assert_eq!(done.out, format!("{}\n", place.at("workspace").display()), "{done:#?}");
}

#[test]
fn ordinary_users_cannot_become_others() {
    if !is_root() {
        return;
    }
    let place = Workspace::of_ordinary_user();
    for other in ["root", "daemon"] {
        let refused = place.sh(&["--as", other], "true");
        refused.assert_failure(125, &[&format!("cannot run as {other}: only root can")]);
    }
    assert_eq!(place.workers(), [""; 0]);
    place.sh(&["--as", "nobody"], "true").assert_success();
}

#[test]
fn store_that_the_user_cannot_write_is_refused() {
    if !is_root() {
        return;
    }
    let place = Workspace::of_ordinary_user();
    for folder in ["store/workers", "store"] {
        chown(place.at(folder), Some(0), Some(0)).unwrap();
        let refused = place.sh(&[], "true");
        refused.assert_failure(125, &["cannot use the store", "the user nobody cannot write"]);
        assert!(!refused.err.contains("--no-sandbox"), "{refused:#?}");
        chown(place.at(folder), Some(ORDINARY), Some(ORDINARY)).unwrap();
    }
    assert_eq!(place.workers(), [""; 0]);
}
