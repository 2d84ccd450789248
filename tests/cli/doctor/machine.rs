//! What it says of the machine: FUSE, the kernel, limits.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{Alone, faults, finding, findings};
use crate::cli::program::{LIMIT, Yard, as_nobody, ended, mounted, open_up, run, small_store, typed};
use crate::mount::readonly::{State, settled};
use crate::needs_fuse;

/// The numbers of system calls that came after all machines had agreed on them.
const OPENAT2: u32 = 437;
const LANDLOCK_CREATE_RULESET: u32 = 444;

#[test]
fn a_sound_machine_and_store_are_said_to_be_so() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let paths = settled(&store);
    let before = State::of(&paths);
    let path = store.path();
    let Some(told) = Alone::new(&yard.path()).json(&[&path]) else { return };
    assert_eq!((&told["problems"], &told["notes"]), (&0.into(), &0.into()), "{told:#}");
    assert_eq!(told["program"], env!("CARGO_PKG_VERSION"));
    assert!(told["kernel"]["release"].as_str().is_some_and(|release| release.contains('.')));
    assert_eq!(told["kernel"]["openat2"], true);
    assert!(told["kernel"]["landlock_abi"].is_i64());
    assert_eq!((&told["fuse"]["device"], &told["fuse"]["root"]), (&true.into(), &true.into()));
    assert_eq!(told["fuse"]["mount"], true);
    assert!(told["fuse"]["passthrough"].is_boolean() && told["fuse"]["user_allow_other"].is_boolean());
    assert!(told["limits"]["descriptors"].is_u64() && told["limits"]["inotify_watches"].is_u64(), "{told:#}");
    assert_eq!(told["mounts"], serde_json::json!([]));
    assert_eq!(told["view"], serde_json::json!({"owner": null, "run": null, "workers": 1}));
    finding(&told, "mount", "ok", &["was mounted and read"]);
    // The schema, which holds for all that these tests see, notices what is missing or too much.
    for place in ["", "/kernel", "/fuse", "/limits", "/view", "/findings/0", "/stores/0", "/stores/0/workers"] {
        for key in told.pointer(place).unwrap().as_object().unwrap().keys() {
            let mut other = told.clone();
            other.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(key);
            assert_ne!(faults(&other), Vec::<String>::new(), "{place} without {key}");
        }
        let mut more = told.clone();
        more.pointer_mut(place).unwrap()["new"] = 1.into();
        assert_ne!(faults(&more), Vec::<String>::new(), "{place} with one field more");
    }
    let done = Alone::new(&yard.path()).run(&[&path]).unwrap();
    assert_eq!(done.code, Some(0));
    for finding in told["findings"].as_array().unwrap() {
        let starts = format!("{:8}{:7}", finding["level"].as_str().unwrap(), finding["topic"].as_str().unwrap());
        let is_it = |line: &str| line.strip_prefix(&starts) == finding["says"].as_str();
        assert!(done.out.lines().any(is_it), "{finding} is not in {done:#?}");
    }
    assert!(done.out.ends_with("\nnothing stands in the way of mounting and reading\n"), "{done:#?}");
    assert_eq!(before.differences(&State::of(&paths)), Vec::<String>::new(), "the store was touched");
}

#[test]
fn without_the_device_the_rest_is_still_told() {
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep, dev) = (store.path(), yard.path(), yard.folder("dev"));
    // A `/dev` with nothing but null in it.
    let none = format!("mknod -m 666 {0}/null c 1 3; mount --bind {0} /dev", dev.display());
    for prepare in [none.as_str(), "mount --bind /dev/null /dev/fuse"] {
        let Some(told) = (Alone { prepare, ..Alone::new(&keep) }).json(&[&path]) else { return };
        finding(&told, "device", "problem", &["/dev/fuse", "--device /dev/fuse --cap-add SYS_ADMIN"]);
        assert_eq!(told["fuse"]["device"], false);
        assert!(told["fuse"]["mount"].is_null() && told["fuse"]["passthrough"].is_null());
        assert!(findings(&told, "mount").is_empty());
        assert_eq!(told["stores"][0]["workers"]["total"], 1);
        finding(&told, "openat2", "ok", &[]);
    }
}

#[test]
fn a_user_without_root_is_told_what_root_could() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep) = (store.path(), yard.path());
    [path.parent().unwrap(), &keep].into_iter().for_each(open_up);
    let temporary = everybodys(&yard, "tmp");
    let device = format!("mknod -m 666 {0} c 10 229; mount --bind {0} /dev/fuse; rm {0}", yard.at("fuse").display());
    let user = |prepare| Alone {
        prepare,
        before: as_nobody(&[]),
        variables: vec![("TMPDIR", temporary.clone().into())],
        ..Alone::new(&keep)
    };
    let Some(told) = user(&device).json(&[&path]) else { return };
    assert_eq!(told["fuse"]["root"], false);
    finding(&told, "mount", "ok", &["through fusermount3"]);
    finding(&told, "passthrough", "note", &["root"]);
    let allowed =
        finding(&told, "allow_other", if told["fuse"]["user_allow_other"] == true { "ok" } else { "note" }, &[]);
    assert!(allowed["says"].as_str().unwrap().contains("--allow-other"));
    let without = format!(
        "{device}; for at in /usr/bin/fusermount3 /bin/fusermount3 /usr/bin/fusermount /bin/fusermount; do \
         test ! -e $at || mount --bind /dev/null $at; done"
    );
    let told = user(&without).json(&[&path]).unwrap();
    finding(&told, "mount", "problem", &["not permitted", "see that fusermount3 is set-user-id root"]);
    assert_eq!((&told["fuse"]["mount"], &told["fuse"]["fusermount"]), (&false.into(), &serde_json::Value::Null));
    if Path::new("/etc/fuse.conf").exists() {
        let conf =
            format!("{device}; echo user_allow_other >{0}; mount --bind {0} /etc/fuse.conf", yard.at("conf").display());
        let told = user(&conf).json(&[&path]).unwrap();
        finding(&told, "allow_other", "ok", &[]);
        assert_eq!(told["fuse"]["user_allow_other"], true);
    }
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "nothing is left there");
}

fn everybodys(yard: &Yard, name: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = yard.folder(name);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

#[test]
fn mounting_that_is_not_permitted_is_a_problem_with_a_cure() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep) = (store.path(), yard.path());
    let temporary = yard.folder("tmp");
    let powerless = Alone {
        before: ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"].map(AsRef::as_ref).to_vec(),
        variables: vec![("TMPDIR", temporary.clone().into())],
        ..Alone::new(&keep)
    };
    let Some(told) = powerless.json(&[&path]) else { return };
    finding(&told, "mount", "problem", &["not permitted", "SYS_ADMIN"]);
    assert_eq!(told["fuse"]["mount"], false);
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "nothing is left there");
}

#[test]
fn calls_that_a_container_forbids_are_named() {
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep) = (store.path(), yard.path());
    let Some(told) = (Alone { forbidden: OPENAT2, ..Alone::new(&keep) }).json(&[&path]) else { return };
    finding(&told, "openat2", "problem", &["5.6", "seccomp"]);
    assert_eq!(told["kernel"]["openat2"], false);
    finding(&told, "open", "problem", &[path.to_str().unwrap(), "not implemented"]);
    let told = (Alone { forbidden: LANDLOCK_CREATE_RULESET, ..Alone::new(&keep) }).json(&[&path]).unwrap();
    finding(&told, "landlock", "note", &[]);
    assert_eq!(told["kernel"]["landlock_abi"], 0);
    assert_eq!(told["stores"][0]["workers"]["total"], 1);
}

#[test]
fn few_descriptors_are_noted_and_no_problem() {
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep) = (store.path(), yard.path());
    let few = Alone {
        before: ["bash", "-c", "ulimit -n 128; exec \"$@\"", "bash"].map(AsRef::as_ref).to_vec(),
        ..Alone::new(&keep)
    };
    let Some(told) = few.json(&[&path]) else { return };
    finding(&told, "descriptors", "note", &["128 files"]);
    assert_eq!(told["limits"]["descriptors"], 128);
}

#[test]
fn where_no_mount_can_be_tried_that_is_no_problem() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep) = (store.path(), yard.path());
    for nowhere in ["/no/such/folder", "/no/such/\u{202e}\u{9b}folder"] {
        let nowhere = Alone { variables: vec![("TMPDIR", nowhere.into())], ..Alone::new(&keep) };
        let Some(told) = nowhere.json(&[&path]) else { return };
        finding(&told, "mount", "note", &["/no/such/", "TMPDIR="]);
        assert!(told["fuse"]["mount"].is_null());
        assert_eq!(told["problems"], 0);
    }
}

#[test]
fn a_mount_for_trial_ends_with_whoever_asked_for_it() {
    needs_fuse!();
    let yard = Yard::new();
    let inside = |point: &Path| mounted().iter().any(|(at, kind)| at == point && kind == "fuse.swarmletfs");
    for (what, file, bytes) in [("tree", "README.md", &b"# How"[..]), ("passthrough", "file", b"read by the kernel")] {
        let mut command = typed(["__trial", what]);
        command.env("TMPDIR", yard.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut said = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
        let point = PathBuf::from(String::from_utf8(said).unwrap().strip_prefix('+').unwrap());
        assert!(inside(&point) && point.starts_with(yard.path()), "{point:?}");
        match fs::read(point.join(file)) {
            Ok(read) => assert!(read.starts_with(bytes)),
            // Where passthrough cannot be had, the file cannot be read in any other way.
            Err(error) => assert_eq!(what, "passthrough", "{error}"),
        }
        // As it happens when the one that asked dies.
        drop(child.stdin.take());
        assert!(ended(&mut child, LIMIT).expect("no hang").success());
        assert!(!inside(&point) && !point.exists(), "{point:?}");
    }
    assert_eq!(fs::read_dir(yard.path()).unwrap().count(), 0);
}

#[test]
fn what_is_typed_wrongly_is_said_and_help_tells_the_exit_codes() {
    run(typed(["doctor", ""])).refused(2, &["STORE"]);
    run(typed(["doctor", "--owner", ""])).refused(2, &["--owner"]);
    run(typed(["doctor", "--jsn"])).refused(2, &["--jsn", "--json"]);
    let help = run(typed(["doctor", "--help"]));
    help.fine();
    assert!(help.out.contains("Exit code: 0") && help.out.contains("--json"), "{help:#?}");
}
