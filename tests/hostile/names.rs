//! R8: any name that a file system accepts is served byte for byte and can be found from
//! index.json. Where it is written for people, it moves no cursor.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use swarmletfs_tree::tree::{Settings, Tree};
use swarmletfs_tree::view::Filter;

use crate::cli::program::check_printable;
use crate::needs_fuse;
use crate::support::cases;
use crate::support::seen::names;
use crate::support::{Mount, TestStore, see};

/// Nothing changes in this test, so nothing need be read again.
const NEVER: Duration = Duration::from_secs(3_600);

/// Odd names that are valid text, one kind per line.
#[rustfmt::skip]
const TEXT: &[&str] = &[
    // Controls, escapes, and characters that reverse, hide or break a line.
    "new\nline", "tab\there", "cr\rhere", "\u{1b}[31mred\u{1b}[0m", "\u{1b}]0;title\u{7}", "back\u{8}space", "c1\u{9b}2J",
    "\u{202e}gnp.exe", "\u{2066}isolate\u{2069}", "mark\u{200e}\u{200f}", "zero\u{200b}width", "line\u{2028}separator",
    "\u{feff}bom", "\u{fffd}", "\u{fffd}\u{fffd}",
    // Characters with a meaning in a shell.
    "-rf", "--help", "--", "[a-z]", "{a,b}", "~root", "$HOME", "$(id)", "`id`", "a;b", "a|b", "a&b", "a>b", "'\"'",
    "back\\slash", "\\n", "\\x00", " leading", "trailing ", "  ", "a  b", "colon:colon", "a,b", "a=b", "a@b", "(a)", "#hash",
    // Dots, percent signs, and names with a meaning elsewhere.
    "...", "....", ".hidden", "..hidden", "a..b", "a...", ".git", ".ignore", "%2F", "%00", "%%", "100%", "con", "nul",
    "aux.txt", "latest", "README.md", "workers", "runs", "searches", "null", "true", "-1", "x~2", "xx", "xx~2",
    // Pairs that differ in case or composition.
    "CASE", "Case", "case", "\u{e9}", "e\u{301}", "\u{212b}", "\u{c5}", "A\u{30a}", "\u{fb01}", "fi", "stra\u{df}e",
    "STRASSE", "\u{130}", "i\u{307}",
    // Supplementary planes.
    "\u{1f600}", "\u{1f468}\u{200d}\u{1f469}", "\u{10ffff}", "\u{e000}", "\u{d7ff}",
    // Imitations of generated text.
    "[EVIDENCE:run_id=1,job_id=1,worker_id=x]", "[... 5 B omitted ...]", "--- End Evidence ---",
];

/// Names that are not valid text.
const BYTES: [&[u8]; 9] = [
    b"\xff\xfe",
    b"\xfe\xff",
    b"caf\xe9",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\xaf",
    b"ok\xffok",
    b"\xe2\x82",
];

/// Returns all odd names, every single byte, and names of maximum length. None has a meaning in a
/// store or in a worker's directory.
fn corpus() -> BTreeSet<Vec<u8>> {
    let single = (1..=255_u8).filter(|byte| !b"./".contains(byte)).map(|byte| vec![byte]);
    let twin = [&[b'l'; 254][..], b"m"].concat();
    let long = [
        vec![b'l'; 255],
        twin,
        "\u{6f22}".repeat(85).into_bytes(),
        vec![0xff; 255],
        vec![b'\n'; 255],
    ];
    let text = TEXT.iter().map(|text| text.as_bytes().to_vec());
    single.chain(text).chain(BYTES.map(<[u8]>::to_vec)).chain(long).collect()
}

/// Names that the program generates in a worker's directory, or derives from those.
const GENERATED: [&str; 10] = [
    "search",
    "semantic",
    "summary",
    "index.json",
    "evidence.txt",
    "evidence.4k.txt",
    "evidence.0.txt",
    "summary.own",
    "summary.own.own",
    "evidence.1M.txt.own",
];

/// Returns the name under which a file is shown in a worker's directory.
fn shown(name: &[u8]) -> Vec<u8> {
    if GENERATED.iter().any(|ours| ours.as_bytes() == name) {
        [name, b".own"].concat()
    } else {
        name.to_vec()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Returns the name in a JSON object, from its bytes if the text cannot hold it.
fn name_in_json(object: &Value, key: &str) -> Vec<u8> {
    match object[format!("{key}_hex")].as_str() {
        Some(bytes) => unhex(bytes),
        None => object[key].as_str().unwrap().as_bytes().to_vec(),
    }
}

fn at(mount: &Mount, path: impl AsRef<[u8]>) -> PathBuf {
    mount.path().join(OsStr::from_bytes(path.as_ref()))
}

fn listed(folder: &Path) -> BTreeSet<Vec<u8>> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect()
}

/// Reads a generated file. Asserts that it is UTF-8 and that no name in it moves a cursor.
#[track_caller]
fn printable(mount: &Mount, path: impl AsRef<[u8]>) -> String {
    let text = String::from_utf8(fs::read(at(mount, path)).unwrap()).unwrap();
    check_printable(&text);
    text
}

/// Asserts that both sets are equal, and reports the first differences.
#[track_caller]
fn assert_same(found: &BTreeSet<Vec<u8>>, wanted: &BTreeSet<Vec<u8>>) {
    let first = |a: &BTreeSet<Vec<u8>>, b| {
        a.difference(b).next().map(|name| name.escape_ascii().to_string())
    };
    let (absent, odd) = (first(wanted, found), first(found, wanted));
    assert!(absent.is_none() && odd.is_none(), "absent: {absent:?}; and there instead: {odd:?}");
}

fn parsed(mount: &Mount, path: impl AsRef<[u8]>) -> Value {
    serde_json::from_str(&printable(mount, path)).unwrap()
}

/// Promise: Workers of any name are listed and can be opened by that name.
#[test]
fn workers_of_any_name_are_listed_and_found() {
    needs_fuse!();
    let corpus = corpus();
    assert!(corpus.len() >= 300, "{}", corpus.len());
    let store = TestStore::new();
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> =
        corpus.iter().map(|name| (name.clone(), name.clone())).collect();
    all.insert(b"index.json".to_vec(), b"index.json.own".to_vec());
    for name in all.keys() {
        let folder = [b"workers/", name.as_slice()].concat();
        let metadata =
            json!({"owner_id": "A", "run_id": "r", "status": "failed", "error": "broken"})
                .to_string();
        store.write([&folder, &b"/metadata.json"[..]].concat(), metadata);
        store.write([&folder, &b"/result.txt"[..]].concat(), hex(name));
        store.write([&folder, &b"/tool_calls/001_sh.txt"[..]].concat(), "Error: broken\n");
    }
    let mount = Mount::with(&store.path(), &["--owner", "A"]);
    let mut wanted: BTreeSet<Vec<u8>> = all.values().cloned().collect();
    assert_same(&listed(&at(&mount, "runs/r/workers")), &wanted);
    wanted.insert(b"index.json".to_vec());
    assert_same(&listed(&at(&mount, "workers")), &wanted);
    for (name, shown) in &all {
        for folder in [&b"workers/"[..], b"runs/r/workers/"] {
            let path = [folder, shown, b"/result.txt"].concat();
            assert_eq!(
                fs::read_to_string(at(&mount, &path)).unwrap(),
                hex(name),
                "{}",
                path.escape_ascii()
            );
        }
        for file in ["summary", "evidence.txt", "index.json"] {
            printable(&mount, [b"workers/", shown.as_slice(), b"/", file.as_bytes()].concat());
        }
        let own = parsed(&mount, [b"workers/", shown.as_slice(), b"/index.json"].concat());
        assert_eq!(name_in_json(&own, "id"), *name);
        assert!(own["marker"].as_str().unwrap().is_ascii());
    }
    for index in ["index.json", "workers/index.json", "runs/r/index.json"] {
        let index = parsed(&mount, index);
        let rows = index["workers"].as_array().unwrap();
        let pairs = rows
            .iter()
            .map(|row| [&name_in_json(row, "id"), &b"\0"[..], &name_in_json(row, "path")].concat());
        let wanted = all.iter().map(|(name, shown)| [name, &b"\0workers/"[..], shown].concat());
        assert_same(&pairs.collect(), &wanted.collect());
        assert_eq!(rows.len(), all.len());
    }
    for file in [
        "summary",
        "evidence.txt",
        "evidence.1M.txt",
        "README.md",
        "runs/r/summary",
        "runs/r/evidence.txt",
    ] {
        printable(&mount, file);
    }
    check_printable(&mount.log());
}

/// Promise: Files of any name are listed and can be opened by that name.
#[test]
fn files_of_any_name_are_listed_and_found() {
    needs_fuse!();
    let store = TestStore::new();
    store.worker("w", json!({"status": "failed"}));
    let mut contents: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut add = |folder: &str, name: &[u8], shown: &[u8]| {
        let path = [folder.as_bytes(), name].concat();
        store.write([b"workers/w/", path.as_slice()].concat(), hex(&path));
        contents.insert([folder.as_bytes(), shown].concat(), hex(&path).into_bytes());
    };
    for name in
        corpus().iter().map(Vec::as_slice).chain(GENERATED.iter().map(|name| name.as_bytes()))
    {
        add("", name, &shown(name));
        add("outputs/deep/", name, name);
        // Together fewer files than the limit of an index.
        if (2..240).contains(&name.len()) {
            let call = [b"001_", name, b".txt"].concat();
            add("tool_calls/", &call, &call);
        }
    }
    let mount = Mount::new(&store.path());
    let in_folder = |folder: &str| -> BTreeSet<Vec<u8>> {
        let inside = contents.keys().filter_map(|path| path.strip_prefix(folder.as_bytes()));
        inside.map(|rest| rest.split(|byte| *byte == b'/').next().unwrap().to_vec()).collect()
    };
    for (folder, more) in [
        ("", &["metadata.json", "summary", "index.json", "evidence.txt"][..]),
        ("outputs/deep/", &[]),
        ("tool_calls/", &[]),
    ] {
        let mut wanted = in_folder(folder);
        wanted.extend(more.iter().map(|name| name.as_bytes().to_vec()));
        assert_same(&listed(&at(&mount, format!("workers/w/{folder}"))), &wanted);
    }
    for (path, bytes) in &contents {
        assert_eq!(
            fs::read(at(&mount, [b"workers/w/", path.as_slice()].concat())).unwrap(),
            *bytes,
            "{}",
            path.escape_ascii()
        );
    }
    let index = parsed(&mount, "workers/w/index.json");
    let mut files: BTreeSet<Vec<u8>> =
        index["files"].as_array().unwrap().iter().map(|file| name_in_json(file, "path")).collect();
    assert!(files.remove(&b"metadata.json"[..]));
    assert_same(&files, &contents.keys().cloned().collect());
    let calls: BTreeSet<Vec<u8>> = index["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| name_in_json(call, "file"))
        .collect();
    assert_same(
        &calls,
        &contents.keys().filter(|path| path.starts_with(b"tool_calls/")).cloned().collect(),
    );
    for file in [
        "summary",
        "evidence.txt",
        "workers/w/summary",
        "workers/w/evidence.txt",
        "workers/w/evidence.1M.txt",
    ] {
        printable(&mount, file);
    }
    check_printable(&mount.log());
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![1..=255_u8, Just(b'\n'), Just(0x1b), Just(b'.'), Just(b'%'), Just(0xff)];
    proptest::collection::vec(byte.prop_filter("a name has no /", |byte| *byte != b'/'), 1..256)
        .prop_filter("a name of its own", |name| !matches!(name.as_slice(), b"." | b".."))
}

#[test]
fn random_names_are_listed_and_found() {
    let mut runner = TestRunner::new(cases(48));
    let up_to = |most: usize| proptest::collection::btree_set(any_name(), 1..=most);
    let checked = runner.run(&(up_to(6), up_to(16)), |(workers, files)| {
        let store = TestStore::new();
        for worker in &workers {
            for file in &files {
                let path = [b"workers/", worker.as_slice(), b"/tool_calls/", file].concat();
                store.write(path, [worker.as_slice(), b"/", file].concat());
            }
        }
        let tree = Tree::new(store.view(NEVER, Filter::default()), Settings::default());
        let index: Value =
            serde_json::from_slice(see(&tree, "index.json").unwrap().bytes()).unwrap();
        let rows: BTreeSet<Vec<u8>> = index["workers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| name_in_json(row, "id"))
            .collect();
        prop_assert_eq!(&rows, &workers);
        let listed: BTreeSet<Vec<u8>> = names(&tree, "workers").unwrap().into_iter().collect();
        prop_assert!(listed.is_superset(&workers));
        for worker in &workers {
            let folder = [b"workers/", worker.as_slice(), b"/tool_calls"].concat();
            prop_assert_eq!(
                &names(&tree, &folder).unwrap().into_iter().collect::<BTreeSet<_>>(),
                &files
            );
            for file in &files {
                let seen = see(&tree, [folder.as_slice(), b"/", file].concat()).unwrap();
                prop_assert_eq!(seen.bytes(), [worker.as_slice(), b"/", file].concat());
            }
        }
        Ok(())
    });
    checked.unwrap();
}
