//! Findings about the machine: FUSE, the kernel, and limits.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{IsolatedDoctor, faults, finding, findings};
use crate::cli::program::{
    LIMIT, MountSandbox, make_accessible, mounted, run, small_store, swarmletfs, wait_timeout,
    without_privileges,
};
use crate::mount::readonly::{State, settled};
use crate::needs_fuse;

/// Numbers of recent system calls, which are the same on all architectures.
const OPENAT2: u32 = 437;
pub const LANDLOCK_CREATE_RULESET: u32 = 444;

#[test]
fn doctor_reports_no_problem_on_a_healthy_machine() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let paths = settled(&store);
    let before = State::of(&paths);
    let path = store.path();
    let Some(report) = IsolatedDoctor::new(&sandbox.path()).json(&[&path]) else { return };
    // Without a control group, the limits of `run` hold for each process only.
    let has_group = report["run"]["limits"] == "cgroup";
    let (level, held) =
        if has_group { ("ok", "for all processes together") } else { ("note", "for each process") };
    finding(&report, "command_limits", level, &["--memory and --pids of run hold", held]);
    let notes = u64::from(!has_group);
    assert_eq!((&report["problems"], &report["notes"]), (&0.into(), &notes.into()), "{report:#}");
    assert_eq!(report["program"], env!("CARGO_PKG_VERSION"));
    assert!(report["kernel"]["release"].as_str().is_some_and(|release| release.contains('.')));
    assert_eq!(report["kernel"]["openat2"], true);
    assert!(report["kernel"]["landlock_abi"].is_i64());
    assert_eq!((&report["fuse"]["device"], &report["fuse"]["root"]), (&true.into(), &true.into()));
    assert_eq!(report["fuse"]["mount"], true);
    finding(&report, "isolation", "ok", &["run isolates a command"]);
    finding(&report, "engine", "ok", &["run makes overlays"]);
    assert_eq!(
        (&report["run"]["engine"], &report["run"]["refusal"]),
        (&"overlay".into(), &().into())
    );
    assert!(report["run"]["landlock"].is_string(), "{report:#}");
    assert!(
        report["fuse"]["passthrough"].is_boolean()
            && report["fuse"]["user_allow_other"].is_boolean()
    );
    assert!(
        report["limits"]["descriptors"].is_u64() && report["limits"]["inotify_watches"].is_u64(),
        "{report:#}"
    );
    assert_eq!(report["mounts"], serde_json::json!([]));
    assert_eq!(report["view"], serde_json::json!({"owner": null, "run": null, "workers": 1}));
    finding(&report, "mount", "ok", &["was mounted and read"]);
    // The schema detects any missing or additional field.
    for place in [
        "",
        "/kernel",
        "/fuse",
        "/run",
        "/limits",
        "/view",
        "/findings/0",
        "/stores/0",
        "/stores/0/recording",
    ] {
        for key in report.pointer(place).unwrap().as_object().unwrap().keys() {
            let mut other = report.clone();
            other.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(key);
            assert_ne!(faults(&other), Vec::<String>::new(), "{place} without {key}");
        }
        let mut more = report.clone();
        more.pointer_mut(place).unwrap()["new"] = 1.into();
        assert_ne!(faults(&more), Vec::<String>::new(), "{place} with one field more");
    }
    let done = IsolatedDoctor::new(&sandbox.path()).run(&[&path]).unwrap();
    assert_eq!(done.code, Some(0));
    for finding in report["findings"].as_array().unwrap() {
        let starts = format!(
            "{:8}{:10}",
            finding["level"].as_str().unwrap(),
            finding["topic"].as_str().unwrap()
        );
        let line = starts + finding["says"].as_str().unwrap();
        assert!(done.out.lines().any(|shown| shown == line), "{finding} is not in {done:#?}");
    }
    let end = if has_group { "\n" } else { "; 1 note\n" };
    assert!(
        done.out.ends_with(&format!("\nnothing stands in the way of mounting and reading{end}")),
        "{done:#?}"
    );
    assert_eq!(
        before.differences(&State::of(&paths)),
        Vec::<String>::new(),
        "the store was touched"
    );
}

#[test]
fn doctor_reports_everything_else_without_the_device() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep, dev) = (store.path(), sandbox.path(), sandbox.folder("dev"));
    // A `/dev` that contains only null.
    let none = format!("mknod -m 666 {0}/null c 1 3; mount --bind {0} /dev", dev.display());
    for prepare in [none.as_str(), "mount --bind /dev/null /dev/fuse"] {
        let Some(report) =
            (IsolatedDoctor { prepare, ..IsolatedDoctor::new(&keep) }).json(&[&path])
        else {
            return;
        };
        finding(
            &report,
            "device",
            "problem",
            &["/dev/fuse", "--device /dev/fuse --cap-add SYS_ADMIN"],
        );
        assert_eq!(report["fuse"]["device"], false);
        assert!(report["fuse"]["mount"].is_null() && report["fuse"]["passthrough"].is_null());
        assert!(findings(&report, "mount").is_empty());
        assert_eq!(report["stores"][0]["workers"], 1);
        finding(&report, "openat2", "ok", &[]);
    }
}

#[test]
fn doctor_reports_limits_of_an_unprivileged_user() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep) = (store.path(), sandbox.path());
    [path.parent().unwrap(), &keep].into_iter().for_each(make_accessible);
    let temporary = everybodys(&sandbox, "tmp");
    let device = format!(
        "mknod -m 666 {0} c 10 229; mount --bind {0} /dev/fuse; rm {0}",
        sandbox.at("fuse").display()
    );
    let user = |prepare| IsolatedDoctor {
        prepare,
        before: without_privileges(&[]),
        variables: vec![("TMPDIR", temporary.clone().into())],
        ..IsolatedDoctor::new(&keep)
    };
    let Some(report) = user(&device).json(&[&path]) else { return };
    assert_eq!(report["fuse"]["root"], false);
    finding(&report, "mount", "ok", &["through fusermount3"]);
    finding(&report, "passthrough", "note", &["root"]);
    let allowed = finding(
        &report,
        "allow_other",
        if report["fuse"]["user_allow_other"] == true { "ok" } else { "note" },
        &[],
    );
    assert!(allowed["says"].as_str().unwrap().contains("--allow-other"));
    let without = format!(
        "{device}; for at in /usr/bin/fusermount3 /bin/fusermount3 /usr/bin/fusermount /bin/fusermount; do \
         test ! -e $at || mount --bind /dev/null $at; done"
    );
    let report = user(&without).json(&[&path]).unwrap();
    finding(
        &report,
        "mount",
        "problem",
        &["not permitted", "make sure that fusermount3 is set-user-id root"],
    );
    assert_eq!(
        (&report["fuse"]["mount"], &report["fuse"]["fusermount"]),
        (&false.into(), &serde_json::Value::Null)
    );
    if Path::new("/etc/fuse.conf").exists() {
        let conf = format!(
            "{device}; echo user_allow_other >{0}; mount --bind {0} /etc/fuse.conf",
            sandbox.at("conf").display()
        );
        let report = user(&conf).json(&[&path]).unwrap();
        finding(&report, "allow_other", "ok", &[]);
        assert_eq!(report["fuse"]["user_allow_other"], true);
    }
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "temporary files are left");
}

fn everybodys(sandbox: &MountSandbox, name: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = sandbox.folder(name);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

#[test]
fn doctor_reports_forbidden_mounting_with_a_remedy() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep) = (store.path(), sandbox.path());
    let temporary = sandbox.folder("tmp");
    let powerless = IsolatedDoctor {
        before: ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
            .map(AsRef::as_ref)
            .to_vec(),
        variables: vec![("TMPDIR", temporary.clone().into())],
        ..IsolatedDoctor::new(&keep)
    };
    let Some(report) = powerless.json(&[&path]) else { return };
    finding(&report, "mount", "problem", &["not permitted", "SYS_ADMIN"]);
    assert_eq!(report["fuse"]["mount"], false);
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "temporary files are left");
}

#[test]
fn doctor_names_system_calls_forbidden_by_a_container() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep) = (store.path(), sandbox.path());
    let Some(report) =
        (IsolatedDoctor { forbidden: OPENAT2, ..IsolatedDoctor::new(&keep) }).json(&[&path])
    else {
        return;
    };
    finding(&report, "openat2", "note", &["5.6", "name by name"]);
    assert_eq!(report["kernel"]["openat2"], false);
    finding(&report, "workers", "ok", &["1 worker"]);
    let report =
        (IsolatedDoctor { forbidden: LANDLOCK_CREATE_RULESET, ..IsolatedDoctor::new(&keep) })
            .json(&[&path])
            .unwrap();
    finding(&report, "landlock", "note", &[]);
    assert_eq!(report["kernel"]["landlock_abi"], 0);
    finding(&report, "isolation", "note", &["there is no landlock", "abstract sockets"]);
    assert_eq!(report["run"]["landlock"], "none");
    assert_eq!(report["stores"][0]["workers"], 1);
}

#[test]
fn doctor_notes_a_low_descriptor_limit() {
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep) = (store.path(), sandbox.path());
    let few = IsolatedDoctor {
        before: ["bash", "-c", "ulimit -n 128; exec \"$@\"", "bash"].map(AsRef::as_ref).to_vec(),
        ..IsolatedDoctor::new(&keep)
    };
    let Some(report) = few.json(&[&path]) else { return };
    finding(&report, "descriptors", "note", &["128 files"]);
    assert_eq!(report["limits"]["descriptors"], 128);
}

#[test]
fn doctor_notes_an_untried_mount() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let (path, keep) = (store.path(), sandbox.path());
    for nowhere in ["/no/such/folder", "/no/such/\u{202e}\u{9b}folder"] {
        let nowhere = IsolatedDoctor {
            variables: vec![("TMPDIR", nowhere.into())],
            ..IsolatedDoctor::new(&keep)
        };
        let Some(report) = nowhere.json(&[&path]) else { return };
        finding(&report, "mount", "note", &["/no/such/", "TMPDIR="]);
        assert!(report["fuse"]["mount"].is_null());
        assert_eq!(report["problems"], 0);
    }
}

#[test]
fn trial_mount_ends_with_its_parent() {
    needs_fuse!();
    let sandbox = MountSandbox::new();
    let inside =
        |point: &Path| mounted().iter().any(|(at, kind)| at == point && kind == "fuse.swarmletfs");
    for (what, file, bytes) in
        [("tree", "README.md", &b"# How"[..]), ("passthrough", "file", b"read by the kernel")]
    {
        let mut command = swarmletfs(["__trial", what]);
        command
            .env("TMPDIR", sandbox.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdout = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let point = PathBuf::from(String::from_utf8(stdout).unwrap().strip_prefix('+').unwrap());
        assert!(inside(&point) && point.starts_with(sandbox.path()), "{point:?}");
        match fs::read(point.join(file)) {
            Ok(read) => assert!(read.starts_with(bytes)),
            // Without passthrough, this file cannot be read at all.
            Err(error) => assert_eq!(what, "passthrough", "{error}"),
        }
        // As when the parent process dies.
        drop(child.stdin.take());
        assert!(wait_timeout(&mut child, LIMIT).expect("no hang").success());
        assert!(!inside(&point) && !point.exists(), "{point:?}");
    }
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 0);
}

#[test]
fn doctor_rejects_invalid_arguments_and_documents_exit_codes() {
    run(swarmletfs(["doctor", ""])).assert_failure(2, &["STORE"]);
    run(swarmletfs(["doctor", "--owner", ""])).assert_failure(2, &["--owner"]);
    run(swarmletfs(["doctor", "--jsn"])).assert_failure(2, &["--jsn", "--json"]);
    let help = run(swarmletfs(["doctor", "--help"]));
    help.assert_success();
    assert!(help.out.contains("Exit code: 0") && help.out.contains("--json"), "{help:#?}");
}
