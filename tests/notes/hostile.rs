//! Notes that other programs change in the store while they are mounted, and names that lead
//! elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use rustix::io::Errno;

use super::{mount, store};
use crate::cli::program::{is_root, run, swarmletfs};
use crate::needs_fuse;
use crate::support::Mount;
use crate::support::user::as_user;

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap()
}

/// Promise: In the notes of a mount, links and special files are neither shown, made nor followed.
#[test]
fn links_and_special_files_are_neither_shown_nor_made() {
    needs_fuse!();
    let store = store();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "kept").unwrap();
    let notes = store.path().join("supervisor");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("note"), "note").unwrap();
    symlink(outside.path(), notes.join("folder")).unwrap();
    symlink(outside.path().join("secret"), notes.join("file")).unwrap();
    fs::hard_link(outside.path().join("secret"), notes.join("hard")).unwrap();
    rustix::fs::mknodat(CWD, notes.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::write(notes.join(".swarmletfs-tmp-1"), "half").unwrap();
    let mount = mount(&store);
    assert_eq!(mount.list("supervisor"), ["hard", "note"]);
    let at = |name: &str| mount.at("supervisor").join(name);
    for name in ["folder", "folder/secret", "file", "fifo", ".swarmletfs-tmp-1"] {
        assert_eq!(errno(fs::symlink_metadata(at(name)).unwrap_err()), Errno::NOENT, "{name}");
    }
    // A hard link is read, but never written.
    assert_eq!(fs::read(at("hard")).unwrap(), b"kept");
    for options in [OpenOptions::new().write(true), OpenOptions::new().append(true)] {
        assert_eq!(errno(options.open(at("hard")).unwrap_err()), Errno::PERM);
    }
    assert_eq!(symlink("note", at("new")).map_err(errno), Err(Errno::PERM));
    assert_eq!(fs::hard_link(at("note"), at("new")).map_err(errno), Err(Errno::PERM));
    for kind in [FileType::Fifo, FileType::Socket, FileType::CharacterDevice] {
        assert_eq!(rustix::fs::mknodat(CWD, at("new"), kind, Mode::RWXU, 0), Err(Errno::PERM));
    }
    rustix::fs::mknodat(CWD, at("plain"), FileType::RegularFile, Mode::RWXU, 0).unwrap();
    for name in [".swarmletfs-new", ".swarmletfs-tmp-1"] {
        assert_eq!(fs::write(at(name), "x").map_err(errno), Err(Errno::PERM), "{name}");
    }
    assert_eq!(
        rustix::fs::renameat_with(CWD, at("note"), CWD, at("x"), RenameFlags::WHITEOUT),
        Err(Errno::INVAL)
    );
    // A file of the notes takes the place of a link, and nothing is written through it.
    fs::rename(at("plain"), at("file")).unwrap();
    fs::write(at("file"), "mine").unwrap();
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"kept");
    assert_eq!(fs::read(notes.join("file")).unwrap(), b"mine");
}

/// Promise: Changes of notes in the store are seen in a mount, and an open file keeps its content.
#[test]
fn changes_in_the_store_are_seen() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store);
    let note = mount.at("supervisor/plan.md");
    let command = |arguments: &[&str]| {
        let mut command = swarmletfs(["note"]);
        command.args(arguments).arg("--store").arg(store.path());
        run(command).assert_success().out.clone()
    };
    fs::write(&note, "one\n").unwrap();
    assert_eq!(command(&["read", "plan.md"]), "one\n");
    let mut held = OpenOptions::new().read(true).write(true).open(&note).unwrap();
    command(&["write", "plan.md", "two"]);
    crate::cli::program::wait_until("the new note is seen", || {
        fs::read(&note).is_ok_and(|bytes| bytes == b"two\n")
    });
    // What is written to the replaced file is not in the new one.
    held.write_all(b"ONE\n").unwrap();
    held.sync_all().unwrap();
    assert_eq!(held.metadata().unwrap().len(), 4);
    let mut bytes = String::new();
    held.rewind().unwrap();
    held.read_to_string(&mut bytes).unwrap();
    assert_eq!(bytes, "ONE\n");
    assert_eq!(fs::read(&note).unwrap(), b"two\n");
    // Both append to the same file.
    let mut end = OpenOptions::new().append(true).open(&note).unwrap();
    end.write_all(b"three\n").unwrap();
    let path = store.path().join("supervisor/plan.md");
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"four\n").unwrap();
    end.write_all(b"five\n").unwrap();
    drop(end);
    assert_eq!(fs::read(&path).unwrap(), b"two\nthree\nfour\nfive\n");
    crate::cli::program::wait_until("all lines are seen", || {
        fs::read(&note).is_ok_and(|bytes| bytes == b"two\nthree\nfour\nfive\n")
    });
}

#[test]
fn open_files_and_folders_survive_removal_and_renames() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store);
    let at = |name: &str| mount.at("supervisor").join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/b/note"), "text").unwrap();
    let mut held = OpenOptions::new().read(true).append(true).open(at("a/b/note")).unwrap();
    fs::rename(at("a"), at("c")).unwrap();
    held.write_all(b"+").unwrap();
    assert_eq!(fs::read(at("c/b/note")).unwrap(), b"text+");
    let before = held.metadata().unwrap();
    assert_eq!(fs::metadata(at("c/b/note")).unwrap().ino(), before.ino());
    fs::remove_file(at("c/b/note")).unwrap();
    held.write_all(b"+").unwrap();
    held.sync_all().unwrap();
    held.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    held.set_len(3).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 3);
    assert_eq!(held.metadata().unwrap().mode() & 0o777, 0o600);
    fs::write(at("c/b/note"), "new").unwrap();
    assert_ne!(fs::metadata(at("c/b/note")).unwrap().ino(), before.ino());
    assert_eq!(held.metadata().unwrap().len(), 3);
    // A folder that somebody is in, and a new one of its name.
    let folder = File::open(at("c")).unwrap();
    fs::remove_dir_all(at("c")).unwrap();
    fs::create_dir(at("c")).unwrap();
    fs::write(at("c/x"), "x").unwrap();
    assert_ne!(
        folder.metadata().map(|meta| meta.ino()).unwrap_or_default(),
        fs::metadata(at("c")).unwrap().ino()
    );
    fs::write(at("d"), "d").unwrap();
    rustix::fs::renameat_with(CWD, at("c"), CWD, at("d"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at("c")).unwrap(), b"d");
    assert_eq!(fs::read(at("d/x")).unwrap(), b"x");
    assert_eq!(
        rustix::fs::renameat_with(CWD, at("c"), CWD, at("d"), RenameFlags::NOREPLACE),
        Err(Errno::EXIST)
    );
    assert_eq!(fs::remove_dir(at("d")).map_err(errno), Err(Errno::NOTEMPTY));
}

/// Another process swaps folders and links in the store while notes are written: nothing is written
/// elsewhere.
#[test]
fn writes_never_leave_the_notes() {
    needs_fuse!();
    let store = store();
    let outside = tempfile::tempdir().unwrap();
    let notes = store.path().join("supervisor");
    for folder in [notes.join("a"), notes.join("b"), outside.path().join("a")] {
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("note"), "kept").unwrap();
    }
    symlink(outside.path().join("a"), notes.join("link")).unwrap();
    let mount = mount(&store);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for other in ["link", "b"] {
                    let (one, two) = (notes.join("a"), notes.join(other));
                    rustix::fs::renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE).unwrap();
                }
            }
        });
        let folder = mount.at("supervisor/a");
        for turn in 0..300 {
            // Each may fail, since the folder is gone half of the time.
            let _ = fs::write(folder.join("note"), format!("turn {turn}"));
            let _ = fs::write(folder.join(format!("new{turn}")), "x");
            let _ = fs::rename(folder.join("note"), folder.join("moved"));
            let _ = fs::rename(folder.join("moved"), folder.join("note"));
            let _ = fs::create_dir(folder.join("folder"));
            let _ = fs::remove_file(folder.join(format!("new{turn}")));
            let _ = fs::set_permissions(folder.join("note"), fs::Permissions::from_mode(0o640));
        }
        done.store(true, Ordering::Relaxed);
    });
    let left: Vec<_> = fs::read_dir(outside.path().join("a")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(fs::read(outside.path().join("a/note")).unwrap(), b"kept");
    let mode = fs::metadata(outside.path().join("a/note")).unwrap().mode() & 0o777;
    assert_ne!(mode, 0o640);
}

/// Promise: A mount with notes gives other users the rights that the files have, no more.
#[test]
fn other_users_have_the_rights_of_the_files() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let store = store();
    let notes = store.path().join("supervisor");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("private"), "p").unwrap();
    fs::set_permissions(notes.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(notes.join("shared"), "s").unwrap();
    fs::set_permissions(notes.join("shared"), fs::Permissions::from_mode(0o666)).unwrap();
    let mount = Mount::with(&store.path(), &["--notes", "--allow-other", "--all-owners"]);
    let at = |name: &str| mount.at("supervisor").join(name);
    // The first user has everything in the caches of the kernel.
    assert_eq!(fs::read(at("private")).unwrap(), b"p");
    as_user(54_321, || {
        assert_eq!(errno(fs::read(at("private")).unwrap_err()), Errno::ACCESS);
        assert_eq!(fs::write(at("private"), "x").map_err(errno), Err(Errno::ACCESS));
        assert_eq!(fs::write(at("new"), "x").map_err(errno), Err(Errno::ACCESS));
        assert_eq!(fs::remove_file(at("shared")).map_err(errno), Err(Errno::ACCESS));
        fs::write(at("shared"), "changed").unwrap();
        let mode = fs::Permissions::from_mode(0o4777);
        assert_eq!(fs::set_permissions(at("shared"), mode).map_err(errno), Err(Errno::PERM));
    });
    fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(mode_of(&notes.join("shared")), 0o755, "set-id bits are not set");
    assert_eq!(
        std::os::unix::fs::chown(at("shared"), Some(1), None).map_err(errno),
        Err(Errno::PERM)
    );
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn unusable_combinations_are_refused() {
    let (store, other) = (store(), store());
    let point = tempfile::tempdir().unwrap();
    let refused = |more: &[&str], code: i32, named: &str| {
        let mut command = swarmletfs(["mount", "--notes", "--store"]);
        command.arg(store.path()).args(more).arg(point.path());
        run(command).assert_failure(code, &[named]);
    };
    refused(&["--owner", "u1"], 2, "--owner");
    refused(&["--run", "r1"], 2, "--run");
    refused(&["-o", "owner=u1"], 2, "notes are about the workers of every owner");
    refused(&["--store", other.path().to_str().unwrap()], 2, "--notes writes to one store");
    fs::write(store.path().join("supervisor"), "a file").unwrap();
    refused(&[], 1, "supervisor");
}
