//! Tools paused in the middle of a file while it changes: all that they read is of the version that
//! they opened.
//!
//! A tool whose output is not read stops when the pipe is full, in the middle of a large file. Its
//! output is read only after other readers receive another version. Other tools wait by themselves
//! with the file open, and examine its size, end or pages afterwards. No test depends on lucky
//! timing.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use serde_json::json;

use super::Gives::{AsOnDisk, TheBytes};
use super::{Row, difference};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::tool::{is_here, shell};
use crate::support::{Mount, TestStore};

/// The first byte of output arrives once the file is open. The rest exceeds the size of a pipe, or
/// arrives when standard input ends.
const TOOLS: &[Row] = &[
    ("cat", r#"cat "$F""#, TheBytes),
    ("head", r#"head -c 10000000 <"$F""#, TheBytes),
    ("tail", r#"tail -n +2 "$F""#, AsOnDisk),
    ("grep", r#"grep -n '' "$F""#, AsOnDisk),
    ("rg", r#"rg --no-config --no-mmap -n '' "$F""#, AsOnDisk),
    ("rg", r#"rg --no-config --mmap -n '' "$F""#, AsOnDisk),
    ("less", r#"less "$F""#, TheBytes),
    ("sed", r#"sed 's/^/> /' "$F""#, AsOnDisk),
    ("awk", r#"awk '{print NR, $0}' "$F""#, AsOnDisk),
    ("od", r#"od -c "$F""#, AsOnDisk),
    ("xxd", r#"xxd "$F""#, AsOnDisk),
    ("base64", r#"base64 "$F""#, AsOnDisk),
    ("dd", r#"dd if="$F" bs=10K status=none"#, TheBytes),
    ("tar", r#"tar -cf - "$F" | tar -xOf -"#, TheBytes),
    ("curl", r#"curl -sS "file://$PWD/$F""#, TheBytes),
    ("perl", r#"perl -pe 's/e/E/' "$F""#, AsOnDisk),
    ("bash", r#"while IFS= read -r line; do printf '%s\n' "$line"; done <"$F""#, TheBytes),
    ("bash", r#"exec 3<"$F"; echo; read -r _ || :; cat <&3"#, AsOnDisk),
    ("wc", r#"exec 3<"$F"; echo; read -r _ || :; wc -c <&3"#, AsOnDisk),
    ("tail", r#"exec 3<"$F"; echo; read -r _ || :; tail -c 999 <&3"#, AsOnDisk),
    ("stat", r#"exec 3<"$F"; echo; read -r _ || :; stat -Lc %s /dev/fd/3"#, AsOnDisk),
    ("cp", r#"exec 3<"$F"; echo; read -r _ || :; cp /dev/fd/3 "$T/x"; cat "$T/x""#, AsOnDisk),
    (
        "python3",
        r#"exec 3<"$F"; echo; read -r _ || :; python3 -c 'import os; print(os.read(3, os.fstat(3).st_size))'"#,
        AsOnDisk,
    ),
    (
        "python3",
        r#"exec 3<"$F"; echo; read -r _ || :; python3 -c 'import mmap; print(mmap.mmap(3, 0, access=1)[:])'"#,
        AsOnDisk,
    ),
    (
        "python3",
        r#"python3 -c 'import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, access=1); print(flush=True); input(); print(m[:])' "$F""#,
        AsOnDisk,
    ),
];

/// Runs each tool on `name` in `folder`, and calls `meanwhile` when all have begun and none has
/// ended. Returns each tool's output or its error message.
fn run_paused(
    tools: &[&Row],
    folder: &Path,
    name: &str,
    meanwhile: impl FnOnce(),
) -> Vec<Result<Vec<u8>, String>> {
    let room = tempfile::tempdir().unwrap();
    let start = |(_, command, _): &&Row| {
        let mut shell = shell(command, folder);
        shell
            .env("F", name)
            .env("T", room.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut first = [0];
        let begun = child.stdout.as_mut().unwrap().read_exact(&mut first);
        (child, begun.map(|()| first.to_vec()))
    };
    let begun: Vec<_> = tools.iter().map(start).collect();
    meanwhile();
    let finish = |(mut child, begun): (std::process::Child, std::io::Result<Vec<u8>>)| {
        // A line, so that no tool reports the end of input as an error.
        let _ = child.stdin.take().unwrap().write_all(b"\n");
        let mut output = begun.unwrap_or_default();
        child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        let out = child.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&out.stderr);
        if out.status.success() && complaint.is_empty() {
            Ok(output)
        } else {
            Err(format!("{}: {complaint}", out.status))
        }
    };
    begun.into_iter().map(finish).collect()
}

/// Returns a worker with an output of a megabyte. Each line contains its version.
fn store() -> TestStore {
    let store = TestStore::new();
    store.worker("w", json!({"status": "running"})).call("w", 1, "dump", output("first!"));
    store
}

fn output(version: &str) -> String {
    (0..40_000).map(|n| format!("{n:06} the {version} version\n")).collect()
}

const FILE: &str = "evidence.3M.txt";

#[test]
fn tools_read_the_version_they_opened() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    let path = format!("workers/w/{FILE}");
    let first = mount.read(&path);
    assert!(first.len() > 1_000_000);
    let disk = tempfile::tempdir().unwrap();
    fs::write(disk.path().join(FILE), &first).unwrap();
    let tools: Vec<&Row> = TOOLS.iter().filter(|(tool, ..)| is_here(tool)).collect();
    let from_mount = run_paused(&tools, &mount.at("workers/w"), FILE, || {
        let fresh = store.write("fresh", output("second"));
        fs::rename(fresh, store.at("workers/w/tool_calls/001_dump.txt")).unwrap();
        let second = eventually("the second version", || {
            Some(mount.read(&path)).filter(|new| *new != first)
        });
        assert_eq!(second.len(), first.len(), "both versions must have the same size");
    });
    let on_disk = run_paused(&tools, disk.path(), FILE, || {});
    let mut wrong = Vec::new();
    for (((tool, command, gives), mounted), on_disk) in tools.iter().zip(from_mount).zip(on_disk) {
        let right = if matches!(gives, TheBytes) { Ok(first.clone()) } else { on_disk };
        match (mounted, right) {
            (Ok(mounted), Ok(right)) if mounted == right => {}
            (Ok(mounted), Ok(right)) => {
                wrong.push(format!("{tool}: {command}\n    {}", difference(&mounted, &right)))
            }
            (mounted, right) => {
                wrong.push(format!("{tool}: {command}\n    {:?} {:?}", mounted.err(), right.err()))
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Control: the tools really are in the middle of their file, so a file rewritten in place yields a
/// mix.
#[test]
fn file_rewritten_in_place_is_read_as_a_mix() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    let file = store.at("workers/w/tool_calls/001_dump.txt");
    let cat = &TOOLS[0];
    let from_mount = run_paused(&[cat], &mount.at("workers/w/tool_calls"), "001_dump.txt", || {
        fs::File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .write_all(output("second").as_bytes())
            .unwrap();
    });
    let text = String::from_utf8(from_mount[0].clone().unwrap()).unwrap();
    assert!(text.contains("first!") && text.contains("second"));
}
