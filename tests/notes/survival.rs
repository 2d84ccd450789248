//! Notes when something ends or is full: the program, the writer, the disk.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::{mount, store};
use crate::cli::program::is_root;
use crate::needs_fuse;
use crate::support::{Mount, scale};

/// Number of kills at each check.
const KILLS: usize = 6;

/// Promise: A note is on disk when close or fsync returns, also if the mount is killed then.
#[test]
fn closed_notes_survive_a_kill_of_the_program() {
    needs_fuse!();
    for turn in 0..scale(KILLS) {
        let store = store();
        let mut mount = mount(&store);
        let folder = mount.at("supervisor");
        let writer = thread::spawn(move || {
            let mut acknowledged = Vec::new();
            for number in 0.. {
                let text = format!("note {number}\n").repeat(number % 50 + 1);
                let path = folder.join(format!("n{number}"));
                // The close of `fs::write` reports no error, so the file is synchronized.
                let written = File::create(path).and_then(|mut file| {
                    file.write_all(text.as_bytes())?;
                    file.sync_all()
                });
                if written.is_err() {
                    break;
                }
                acknowledged.push(text);
            }
            acknowledged
        });
        let second = store.path().join("supervisor/n1");
        crate::cli::program::wait_until("a note is acknowledged", || second.exists());
        // A random moment: how far the writer gets until then differs from turn to turn.
        thread::sleep(Duration::from_millis(20 + 13 * turn as u64));
        mount.process().kill().unwrap();
        let acknowledged = writer.join().unwrap();
        assert!(!acknowledged.is_empty());
        for (number, text) in acknowledged.iter().enumerate() {
            let path = store.path().join(format!("supervisor/n{number}"));
            assert_eq!(&fs::read_to_string(path).unwrap(), text, "{number} of {turn}");
        }
    }
}

/// A killed writer leaves what it has written, and the mount works on.
#[test]
fn mount_works_on_after_a_killed_writer() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store);
    for _ in 0..KILLS {
        let mut writer = Command::new("bash")
            .args(["-c", "while true; do echo line; done >> log"])
            .current_dir(mount.at("supervisor"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let size = || fs::metadata(mount.at("supervisor/log")).map_or(0, |meta| meta.len());
        let before = size();
        crate::cli::program::wait_until("it writes", || size() > before);
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    let log = fs::read_to_string(store.path().join("supervisor/log")).unwrap();
    assert!(log.lines().all(|line| line == "line"), "no line is torn");
    assert_eq!(fs::read_to_string(mount.at("supervisor/log")).unwrap(), log);
}

/// Promise: A full disk is an error of the write, and what was written before stays.
#[test]
fn full_disk_is_an_error_of_the_write() {
    needs_fuse!();
    if !is_root() {
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let options = CString::new("size=256k").unwrap();
    rustix::mount::mount("tmpfs", disk.path(), "tmpfs", MountFlags::empty(), options.as_c_str())
        .unwrap();
    let data = disk.path().join("data");
    fs::create_dir_all(data.join("workers")).unwrap();
    let mount = Mount::with(&data, &["--notes"]);
    let note = mount.at("supervisor/big");
    let mut file = File::create(&note).unwrap();
    file.write_all(b"kept\n").unwrap();
    file.sync_all().unwrap();
    let block = vec![1; 4096];
    let error = (0..100).find_map(|_| file.write_all(&block).err()).unwrap();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC));
    let size = file.metadata().unwrap().len();
    assert_eq!(fs::metadata(data.join("supervisor/big")).unwrap().len(), size);
    assert!(fs::read(&note).unwrap().starts_with(b"kept\n"));
    file.set_len(5).unwrap();
    file.write_at(b"KEPT", 0).unwrap();
    drop(file);
    assert_eq!(fs::read(&note).unwrap(), b"KEPT\n");
    fs::write(mount.at("supervisor/new"), "room again").unwrap();
    drop(mount);
    rustix::mount::unmount(disk.path(), UnmountFlags::DETACH).unwrap();
}
