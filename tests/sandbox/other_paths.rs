//! What else is mounted on the machine: the store under other paths, file systems that show it,
//! do not answer or are unmounted, and the directories beside a mountpoint.
//!
//! Workspaces and stores at unusual places.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use super::for_each_user;
use super::place::{Place, quoted, swarmletfs, text};

/// Runs a shell script as root in a mount namespace of its own, with the place as its directory.
/// `run SCRIPT` runs another one in a sandbox.
fn as_root(place: &Place, script: &str) -> String {
    let line = place.in_sandbox(&[], &["sh", "-c"]);
    let quoted = line.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let script = format!("run() {{ (cd workspace && {quoted} \"$1\"); }}\ncd ..\n{script}");
    let words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script];
    let output = place.plain(&words);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// Promise: The store and the cache are hidden from a command under every path at which they can be
/// seen.
#[test]
fn mount_of_the_store_shows_nothing() {
    let Some(place) = Place::of_root() else { return };
    place.write("store/workers/other/metadata.json", r#"{"worker_id": "other"}"#);
    let said = as_root(
        &place,
        &format!(
            "mkdir mnt; {program} mount --store store mnt
            trap '{program} umount --lazy mnt' EXIT
            echo outside: $(ls mnt/workers | grep -c other)
            run 'echo inside: $(ls ../mnt | wc -l)'",
            program = swarmletfs()
        ),
    );
    assert_eq!(said, "outside: 1\ninside: 0\n");
}

#[test]
fn file_system_that_shows_the_store_shows_nothing_of_it() {
    let Some(place) = Place::of_root() else { return };
    let said = as_root(
        &place,
        "mkdir bound over part
        mount --bind store bound
        empty=$(mktemp -d); mount -t overlay -o lowerdir=$PWD:$empty none over
        mount -t overlay -o lowerdir=$PWD/store/workers:$empty none part
        for path in bound/workers over/store/workers part; do
            echo outside: $(ls $path | grep -c other)
        done
        run 'for path in bound over/store part; do echo inside: $(ls ../$path | wc -l); done
             ls ../over | grep -c workspace'
        rmdir $empty",
    );
    let expected = [&["outside: 1"; 3][..], &["inside: 0"; 3], &["1"]].concat();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn mount_of_a_file_of_the_store_is_empty() {
    let Some(place) = Place::of_root() else { return };
    let said = as_root(
        &place,
        "touch file
        mount --bind store/workers/other/result.txt file
        cat file
        run 'cat ../file | wc -c'",
    );
    assert_eq!(said, "secret\n0\n");
}

/// A look at such a mount would hold every run.
#[test]
fn file_system_that_does_not_answer_is_closed() {
    let Some(place) = Place::of_root() else { return };
    let said = as_root(
        &place,
        "mkdir silent
        exec 9<>/dev/fuse
        mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 none silent
        run 'echo runs; ls ../silent | wc -l' 9>&-",
    );
    assert_eq!(said, "runs\n0\n");
}

/// Runs `script` in sandboxes beside a mountpoint, while `change` is repeated: a directory with a
/// mountpoint in it is made anew, and each entry in it is shown for itself.
fn run_during(place: &Place, change: impl Fn() + Send, script: &str) -> Vec<String> {
    place.make_dir("mounted");
    let script = format!("mount --bind mounted mounted\nrun '{script}'");
    thread::scope(|scope| {
        let (_alive, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            while ended.try_recv() == Err(TryRecvError::Empty) {
                change();
            }
        });
        (0..10).map(|_| as_root(place, &script)).collect()
    })
}

#[test]
fn directories_that_vanish_are_left_out() {
    let Some(place) = Place::of_root() else { return };
    let folders: Vec<PathBuf> = (0..100).map(|n| place.path(format!("brief-{n}"))).collect();
    let change = || {
        folders.iter().for_each(|path| fs::create_dir(path).unwrap());
        folders.iter().for_each(|path| fs::remove_dir(path).unwrap());
    };
    assert_eq!(run_during(&place, change, "echo runs"), ["runs\n"; 10]);
}

#[test]
fn links_that_take_the_place_of_others_show_nothing() {
    let Some(place) = Place::of_root() else { return };
    let secret = place.path("store/workers/other/result.txt");
    let pairs: Vec<[PathBuf; 2]> = (0..60)
        .map(|n| {
            let [first, second] = ["a", "b"].map(|name| place.path(format!("{name}-{n}")));
            if n % 2 == 0 {
                fs::create_dir(&first).unwrap();
                symlink(place.path("store"), &second).unwrap();
            } else {
                fs::write(&first, "").unwrap();
                symlink(&secret, &second).unwrap();
            }
            [first, second]
        })
        .collect();
    let read = "cat ../*-* ../*-*/workers/other/result.txt 2> /dev/null; true";
    let outside = text(&place.plain(&["sh", "-c", read]).stdout);
    assert_eq!(outside, "secret\n".repeat(60));
    let change = || {
        for [first, second] in &pairs {
            renameat_with(CWD, first, CWD, second, RenameFlags::EXCHANGE).unwrap();
        }
    };
    assert_eq!(run_during(&place, change, read), [""; 10]);
}

#[test]
fn cache_shows_nothing() {
    super::for_each_user(|place| {
        place.make_dir("home/.cache");
        place.make_dir("home/.cache/swarmletfs");
        place.write("home/.cache/swarmletfs/segment", "secret\n");
        let home = place.path("home");
        let list = "echo $(ls $HOME/.cache/swarmletfs | wc -l)";
        assert_eq!(text(&place.plain(&["sh", "-c", list]).stdout), "1\n");
        for options in [&[][..], &["--write", home.to_str().unwrap()]] {
            assert_eq!(place.shell(options, list), "0\n");
        }
    });
}

/// A sandbox must not keep a disk in use that the user has unmounted, also where the command has
/// copied its tree of mounts.
#[test]
fn file_system_that_is_unmounted_outside_is_released() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::of_user();
    let own_mounts = ["unshare", "--user", "--mount", "--propagation", "unchanged"];
    for namespace in [&[][..], &own_mounts] {
        let _ = fs::remove_dir(place.path("disk"));
        let wait = "test -e ../disk/file; touch $SWARMLET_STORE/workers/$SWARMLET_WORKER/started
            while [ -e ../disk/file ]; do sleep 0.02; done; echo released";
        let line = place.in_sandbox(&[], &[namespace, &["sh", "-ec", wait]].concat());
        let quoted: Vec<String> = line.iter().map(|word| quoted(word)).collect();
        let script = format!(
            "mkdir ../disk; mount -t tmpfs none ../disk; touch ../disk/file
            HOME={home} setpriv --reuid {uid} --regid {uid} --clear-groups {line} &
            while [ ! -e ../store/workers/worker-{count}/started ]; do sleep 0.02; done
            umount ../disk; wait $!",
            home = place.path("home").display(),
            uid = place.uid,
            line = quoted.join(" "),
            count = place.count()
        );
        let mut words = Command::new("timeout");
        words.args(["60", "unshare", "--mount", "--propagation", "private", "sh", "-ec", &script]);
        let output = words.current_dir(place.path("workspace")).output().unwrap();
        assert_eq!(text(&output.stdout), "released\n", "{output:?}");
    }
}

#[test]
fn names_with_separators_of_mount_options_work() {
    for_each_user(|place| {
        let odd = place.make_dir("a,b:c\\d");
        let workspace = place.make_dir("a,b:c\\d/w,x:y\\z");
        place.write("a,b:c\\d/w,x:y\\z/file", "original\n");
        let store = odd.join("s,t:o\\re");
        let store = store.to_str().unwrap();
        assert!(place.plain(&[swarmletfs(), "init", store]).status.success());
        let output = run_in(place, store, &workspace, "echo changed > file; cat file");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"changed\n");
        assert_eq!(place.read("a,b:c\\d/w,x:y\\z/file"), "original\n");
    });
}

/// Runs a script of a shell in a view of `workspace`, with a store at `store`.
fn run_in(place: &Place, store: &str, workspace: &Path, script: &str) -> Output {
    let workspace = workspace.to_str().unwrap();
    let options = ["--quiet", "--store", store, "--workspace", workspace];
    place.plain(&[&[swarmletfs(), "run"], &options[..], &["--", "sh", "-ec", script]].concat())
}

/// The cover of the store is needed twice: at its own path, which is in the view.
#[test]
fn store_in_the_workspace_is_hidden() {
    for_each_user(|place| {
        let store = place.path("workspace/.store");
        let store = store.to_str().unwrap();
        assert!(place.plain(&[swarmletfs(), "init", store]).status.success());
        place.make_dir("workspace/.store/drafts");
        place.make_dir("workspace/.store/drafts/other");
        let script = "echo changed > file; ls .store; ls .store/workers | wc -l";
        let output = run_in(place, store, &place.path("workspace"), script);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"workers\n1\n");
        assert_eq!(place.read("workspace/file"), "original\n");
    });
}

#[test]
fn places_in_tmp_work() {
    for_each_user(|place| {
        let place = Place::in_folder(place.uid, TempDir::new_in("/tmp").unwrap());
        place.make_dir("open");
        place.write("open/private", "");
        assert_eq!(
            place.shell(&[], "echo changed > file; cat file; ls .."),
            "changed\nstore\nworkspace\n"
        );
        assert_eq!(place.read("workspace/file"), "original\n");
        let open = place.path("open");
        let script = "ls ../open/private; echo made > ../open/made; echo changed > file";
        place.shell(&["--write", open.to_str().unwrap()], script);
        assert_eq!(place.read("open/made"), "made\n");
        assert_eq!(place.read("workspace/file"), "original\n");
    });
}
