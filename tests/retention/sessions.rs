//! `archive`: copies of sessions that keep what their program removes.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, FlockOperation, Mode};
use serde_json::{Value, json};

use crate::cli::program::{CommandOutput, program, run, swarmletfs};
use crate::recording::store::{in_store, read_tree};
use crate::support::mount::PROGRAM;

const SESSION: &str = "projects/-w/0a1b2c3d-0000-4000-8000-000000000001.jsonl";

/// Returns a line of a transcript of Claude Code.
fn line(number: u32, text: &str) -> String {
    let message = json!({
        "type": "user", "uuid": format!("u{number}"), "parentUuid": null, "isSidechain": false,
        "sessionId": "0a1b2c3d-0000-4000-8000-000000000001", "cwd": "/w",
        "timestamp": format!("2026-01-20T10:00:{number:02}.000Z"), "version": "2.0.0",
        "message": {"role": "user", "content": text},
    });
    format!("{message}\n")
}

/// The folder of a program with a session, its settings, and a place for a copy.
struct Claude {
    dir: tempfile::TempDir,
}

impl Claude {
    fn new() -> Claude {
        let claude = Claude { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(claude.at("projects/-w/memory")).unwrap();
        fs::write(claude.at(SESSION), line(1, "Check the backups")).unwrap();
        fs::write(claude.at("projects/-w/memory/notes.md"), "notes\n").unwrap();
        fs::write(claude.at(".credentials.json"), "secret").unwrap();
        fs::write(claude.at("settings.json"), "{}").unwrap();
        claude
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("claude").join(path)
    }

    fn copy(&self, path: &str) -> PathBuf {
        self.dir.path().join("copies/claude").join(path)
    }

    fn archive(&self, options: &[&str]) -> CommandOutput {
        let mut command = swarmletfs(["archive"]);
        command.arg(self.at("")).arg(self.copy("")).args(options);
        run(command)
    }

    /// Archives, which succeeds, and returns the numbers.
    #[track_caller]
    fn report(&self) -> Value {
        serde_json::from_str(&self.archive(&["--json"]).assert_success().out).unwrap()
    }

    fn append(&self, text: &str) {
        let old = fs::read_to_string(self.at(SESSION)).unwrap();
        fs::write(self.at(SESSION), old + text).unwrap();
    }
}

fn summary(store: &Path) -> String {
    let mut command = in_store(swarmletfs(["cat", "summary"]), store);
    command.args(["--no-cache", "--stale", "1s"]);
    run(command).assert_success().out.clone()
}

/// Promise: `archive` copies sessions that are new or have grown, and no settings, and the copy can
/// be mounted as its source.
#[test]
fn new_and_grown_sessions_are_copied() {
    let claude = Claude::new();
    let done = claude.archive(&[]);
    assert!(done.assert_success().out.contains(": 2 new, 0 grown; 0 unchanged"), "{done:?}");
    assert_eq!(summary(&claude.copy("")), summary(&claude.at("")));
    let copied = read_tree(&claude.copy(""));
    assert_eq!(read_tree(&claude.copy("projects")), read_tree(&claude.at("projects")));
    assert!(!copied.keys().any(|path| path.contains("credentials") || path.contains("settings")));
    let [from, to] = [claude.at(SESSION), claude.copy(SESSION)].map(|at| fs::metadata(at).unwrap());
    assert_eq!((to.mtime(), to.mtime_nsec()), (from.mtime(), from.mtime_nsec()));
    let folder = fs::metadata(claude.copy("projects")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700, "others cannot read the copy");
    // Nothing is written again.
    let before = fs::metadata(claude.copy(SESSION)).unwrap().ino();
    assert_eq!(claude.report()["unchanged"], 2);
    assert_eq!(fs::metadata(claude.copy(SESSION)).unwrap().ino(), before);
    claude.append(&line(2, "And the disks"));
    fs::write(claude.at("projects/-w/new.jsonl"), line(3, "x")).unwrap();
    let report = claude.report();
    assert_eq!(
        (&report["grown"], &report["new"], &report["unchanged"]),
        (&1.into(), &1.into(), &1.into())
    );
    assert_eq!(read_tree(&claude.copy("projects")), read_tree(&claude.at("projects")));
}

/// Promise: Nothing in an archive is removed or shortened, whatever happens to its source.
#[test]
fn nothing_in_an_archive_is_lost() {
    let claude = Claude::new();
    claude.append(&line(2, "And the disks"));
    claude.archive(&[]).assert_success();
    let whole = fs::read(claude.copy(SESSION)).unwrap();
    // Shorter.
    fs::write(claude.at(SESSION), line(1, "Check the backups")).unwrap();
    let done = claude.archive(&[]);
    assert!(
        done.assert_success().err.contains("is shorter than its copy, which stays"),
        "{done:?}"
    );
    assert_eq!(fs::read(claude.copy(SESSION)).unwrap(), whole);
    // Rewritten.
    fs::write(claude.at(SESSION), line(7, "Something else").repeat(9)).unwrap();
    let done = claude.archive(&[]);
    assert!(done.assert_success().err.contains("was rewritten"), "{done:?}");
    assert_eq!(fs::read(claude.copy(SESSION)).unwrap(), fs::read(claude.at(SESSION)).unwrap());
    let former = claude.copy(&format!("{SESSION}.former-1"));
    assert_eq!(fs::read(&former).unwrap(), whole);
    fs::write(claude.at(SESSION), line(8, "And again").repeat(20)).unwrap();
    assert_eq!(claude.report()["rewritten"], 1);
    assert!(claude.copy(&format!("{SESSION}.former-2")).exists());
    // Gone.
    let before = read_tree(&claude.copy(""));
    fs::remove_dir_all(claude.at("projects/-w")).unwrap();
    assert_eq!(claude.report()["unchanged"], 0);
    assert!(read_tree(&claude.copy("")) == before);
}

/// Promise: The copy of a session that was rewritten keeps its name until the new one is whole.
#[test]
fn former_copy_keeps_its_name_if_the_new_one_cannot_be_written() {
    let claude = Claude::new();
    claude.archive(&[]).assert_success();
    let before = read_tree(&claude.copy(""));
    fs::write(claude.at(SESSION), line(7, "Something else").repeat(99)).unwrap();
    let mut limited = program("sh", ["-c", "ulimit -f 8; exec \"$0\" archive \"$1\" \"$2\""]);
    limited.arg(PROGRAM).arg(claude.at("")).arg(claude.copy(""));
    run(limited).assert_failure(1, &["cannot copy to", "file too large"]);
    assert!(read_tree(&claude.copy("")) == before, "the archive has changed");
    assert_eq!(claude.report()["rewritten"], 1);
    assert_eq!(fs::read(claude.copy(SESSION)).unwrap(), fs::read(claude.at(SESSION)).unwrap());
}

#[test]
fn links_and_special_files_are_counted_and_not_copied() {
    let claude = Claude::new();
    symlink(claude.at(".credentials.json"), claude.at("projects/-w/link.jsonl")).unwrap();
    symlink(claude.at(""), claude.at("projects/loop")).unwrap();
    rustix::fs::mknodat(CWD, claude.at("projects/-w/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let report = claude.report();
    assert_eq!((&report["new"], &report["skipped"]), (&2.into(), &3.into()), "{report}");
    // What somebody planted in the archive leads nowhere.
    let outside = claude.dir.path().join("outside");
    fs::write(&outside, "kept").unwrap();
    fs::remove_file(claude.copy(SESSION)).unwrap();
    symlink(&outside, claude.copy(SESSION)).unwrap();
    claude.archive(&[]).assert_failure(1, &["cannot copy to"]);
    assert_eq!(fs::read(&outside).unwrap(), b"kept");
}

/// A program whose sessions change in any way cannot stop the copying of others.
#[test]
fn hostile_sources_stop_nothing() {
    let claude = Claude::new();
    let folder = claude.at("projects/-w");
    let long = format!("{}.jsonl", "x".repeat(245));
    fs::write(folder.join("a"), "file").unwrap();
    fs::create_dir(folder.join("b")).unwrap();
    fs::write(folder.join("b/inner"), "inner").unwrap();
    fs::write(folder.join(&long), "long").unwrap();
    fs::create_dir(folder.join(".swarmletfs-tmp-0123456789abcdef")).unwrap();
    let report = claude.report();
    assert_eq!((&report["new"], &report["skipped"]), (&5.into(), &1.into()), "{report}");
    // A file becomes a folder, a folder a file, and a file is rewritten shorter.
    fs::remove_file(folder.join("a")).unwrap();
    fs::create_dir(folder.join("a")).unwrap();
    fs::write(folder.join("a/inner"), "new").unwrap();
    fs::remove_dir_all(folder.join("b")).unwrap();
    fs::write(folder.join("b"), "new").unwrap();
    fs::write(claude.at("projects/-w/memory/notes.md"), "new\n").unwrap();
    fs::write(folder.join(&long), "rewritten").unwrap();
    fs::write(folder.join("last.jsonl"), "last").unwrap();
    let done = claude.archive(&[]);
    done.assert_failure(1, &[&format!("{long} could not be copied")]);
    let copy = |path: &str| fs::read_to_string(claude.copy("projects/-w").join(path)).unwrap();
    assert_eq!([copy("a.former-1"), copy("a/inner")], ["file", "new"]);
    assert_eq!([copy("b.former-1/inner"), copy("b")], ["inner", "new"]);
    assert_eq!([copy("memory/notes.md.former-1"), copy("memory/notes.md")], ["notes\n", "new\n"]);
    assert_eq!([copy(&long), copy("last.jsonl")], ["long", "last"]);
}

#[test]
fn one_archive_is_written_once_at_a_time() {
    let claude = Claude::new();
    claude.archive(&[]).assert_success();
    let held = fs::File::open(claude.copy("")).unwrap();
    rustix::fs::flock(held.as_fd(), FlockOperation::LockExclusive).unwrap();
    claude.archive(&[]).assert_failure(1, &["another process writes it; try again"]);
    drop(held);
    // What a crash left is removed.
    let left = claude.copy("projects/-w/.swarmletfs-tmp-0123456789abcdef");
    fs::write(&left, "half").unwrap();
    claude.archive(&["--quiet"]).assert_success();
    assert!(!left.exists());
}

#[test]
fn unusable_places_are_refused() {
    let claude = Claude::new();
    let archive = |from: &Path, to: &Path| {
        let mut command = swarmletfs(["archive"]);
        command.arg(from).arg(to);
        run(command)
    };
    for (from, to) in [("", ""), ("", "projects/copy"), ("projects", "")] {
        let refused = archive(&claude.at(from), &claude.at(to));
        refused.assert_failure(2, &["one folder is in the other"]);
    }
    let store = claude.dir.path().join("store");
    let mut init = swarmletfs(["init"]);
    init.arg(&store);
    run(init).assert_success();
    archive(&store, &claude.copy("")).assert_failure(1, &["try `swarmletfs gc --archive DIR`"]);
    let empty = claude.dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fs::write(empty.join("x"), "x").unwrap();
    archive(&empty, &claude.copy("")).assert_failure(1, &["no sessions that are known"]);
    archive(&claude.at("none"), &claude.copy("")).assert_failure(1, &["cannot open"]);
    assert!(!claude.copy("").exists());
}

/// The units for systemd run commands that exist, with options that exist.
#[test]
fn timers_run_commands_as_they_are() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/systemd");
    let claude = Claude::new();
    let home = claude.dir.path();
    fs::rename(claude.at(""), home.join(".claude")).unwrap();
    let mut init = swarmletfs(["init"]);
    init.arg(home.join("swarm"));
    run(init).assert_success();
    for name in ["archive", "gc"] {
        let unit = fs::read_to_string(dist.join(format!("swarmletfs-{name}.service"))).unwrap();
        let line =
            unit.lines().find_map(|line| line.strip_prefix("ExecStart=swarmletfs ")).unwrap();
        let line = line.replace("%h", home.to_str().unwrap());
        let done = run(swarmletfs(line.split(' ')));
        assert_eq!(done.assert_success().out, "", "{done:?}");
        let timer = fs::read_to_string(dist.join(format!("swarmletfs-{name}.timer"))).unwrap();
        assert!(timer.contains("OnCalendar=") && timer.contains("Persistent=true"), "{timer}");
    }
    assert!(home.join(".local/share/swarmletfs/sessions/claude").join(SESSION).exists());
}
