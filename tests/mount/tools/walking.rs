//! Every tool that walks visits exactly the paths of a plain readdir walk, each once, and without
//! complaints.
//!
//! Query names such as `evidence.4k.txt` are looked up before in every kind of directory, and no
//! walk visits them. A copy of the tree on disk, written from the tree without a kernel, stands
//! beside the mount. A tool must have equal output for both.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use self::Gives::*;
use crate::mount::{eventually, swarm};
use crate::needs_fuse;
use crate::support::tool::{is_here, lay_out, shell};
use crate::support::{Mount, TestStore, see_folder};

/// Expected output of a command that runs in the tree's root.
#[derive(Debug, Clone, Copy)]
enum Gives {
    /// All paths, one per line.
    Everything,
    /// The paths of the files.
    Files,
    /// The paths of the directories.
    Folders,
    /// The paths of the files and symlinks.
    FilesAndLinks,
    /// All paths, symlinks followed.
    EverythingThroughLinks,
    /// The paths of the files, symlinks followed.
    FilesThroughLinks,
    /// Its output for the copy on disk.
    AsOnDisk,
    /// No output, and equal files, directories and symlinks in `$T/copy`.
    ACopy,
    /// No output, and equal files, directories and symlinks in `$T/copy`, with equal modes and
    /// times.
    AnExactCopy,
}

/// A tool, a command that runs it in the tree's root, and its expected output. `$D` is a copy of
/// the tree on disk, and `$T` a directory to write in.
type Row = (&'static str, &'static str, Gives);

const WALKS: &[Row] = &[
    ("find", "find .", Everything),
    ("find", "find . -type f", Files),
    ("find", "find . -type d", Folders),
    ("find", "find . -type f -o -type l", FilesAndLinks),
    ("find", "find -L .", EverythingThroughLinks),
    ("find", "find -L . -type f -readable ! -empty", FilesThroughLinks),
    ("find", r"find . -type f -printf '%y %s %m %U %G %T+ %p\n'", AsOnDisk),
    ("find", r"find . -type l -printf '%y %s %p %l\n'", AsOnDisk),
    ("find", r"find . -mindepth 1 -type d -printf '%y %m %U %G %T+ %p\n'", AsOnDisk),
    ("find", "find . -depth -name 'evidence*' -newermt 2000-01-01 -size -2M", AsOnDisk),
    ("ls", "ls -RA --file-type", AsOnDisk),
    (
        "ls",
        "ls -lAR --full-time | awk '!/^total/ { if (/^d/) $2 = $5 = \"\"; if (/^l/) $6 = $7 = \"\"; $1 = $1; print }'",
        AsOnDisk,
    ),
    ("tree", "tree -a", AsOnDisk),
    ("tree", "tree -apugDsif --timefmt=%s --noreport | grep '^.-'", AsOnDisk),
    ("tree", "tree -al", AsOnDisk),
    ("du", "du -a . | cut -f 2-", Everything),
    ("du", "find . -type f -print0 | du -b --files0-from=-", AsOnDisk),
    ("bash", r"shopt -s globstar dotglob; printf '%s\n' **", Everything),
    (
        "perl",
        r#"perl -MFile::Find -e 'find(sub { print "$File::Find::name\n" }, ".")'"#,
        Everything,
    ),
    ("busybox", "busybox find . -type f", Files),
    ("busybox", "busybox du -a . | cut -f 2-", Everything),
];

const SEARCHES: &[Row] = &[
    ("grep", "grep -rc '' . | sed 's/:[0-9]*$//'", Files),
    ("grep", "grep -Rc '' . | sed 's/:[0-9]*$//'", FilesThroughLinks),
    ("grep", "grep -rna '' .", AsOnDisk),
    ("grep", "grep -rIl --include='*.txt' Error .", AsOnDisk),
    ("rg", "rg --no-config --hidden --files", Files),
    ("rg", "rg --no-config -uuu --files .", Files),
    ("rg", "rg --no-config --hidden --files -L", FilesThroughLinks),
    ("rg", "rg --no-config --files", AsOnDisk),
    ("rg", "rg --no-config --hidden -a -n --no-heading ''", AsOnDisk),
    ("rg", "rg --no-config -l Error", AsOnDisk),
    ("rg", "rg --no-config --mmap -c Error", AsOnDisk),
    ("fdfind", "fdfind -H", Everything),
    ("fdfind", "fdfind -u -t f", Files),
    ("fdfind", "fdfind -H -L", EverythingThroughLinks),
    ("fdfind", "fdfind -t d", Folders),
    ("fdfind", "fdfind evidence -x sha256sum", AsOnDisk),
    ("git", "git grep --no-index -c '' | sed 's/:[0-9]*$//'", Files),
    ("git", "git grep --no-index -n ''", AsOnDisk),
    (
        "git",
        r#"export GIT_DIR="$T/git" GIT_WORK_TREE="$PWD"; git init -q; git ls-files -o"#,
        FilesAndLinks,
    ),
    (
        "git",
        r#"export GIT_DIR="$T/git" GIT_WORK_TREE="$PWD"; git init -q; git status --porcelain -uall | sed 's/^?? //; s/"//g'"#,
        FilesAndLinks,
    ),
    (
        "git",
        r#"export GIT_DIR="$T/git" GIT_WORK_TREE="$PWD"; git init -q; git add -A; git ls-files -s; git status --porcelain | sed '/^A /d'; git diff"#,
        AsOnDisk,
    ),
    (
        "git",
        r#"name=${PWD##*/}; cd ..; export GIT_DIR="$T/git" GIT_WORK_TREE="$PWD"; git init -q; git ls-files -o "$name" | sed 's|^[^/]*/||'"#,
        FilesAndLinks,
    ),
    ("busybox", "busybox grep -rc '' . | sed 's/:[0-9]*$//'", Files),
];

/// These tools apply ignore rules that they find in the directories.
const RULED: &[Row] = &[
    ("rg", "rg --no-config --files", AsOnDisk),
    ("rg", "rg --no-config --hidden -l ''", AsOnDisk),
    ("fdfind", "fdfind -t f", AsOnDisk),
    (
        "git",
        r#"export GIT_DIR="$T/git" GIT_WORK_TREE="$PWD"; git init -q; git ls-files -o --exclude-standard"#,
        AsOnDisk,
    ),
];

const COPIES: &[Row] = &[
    ("cp", r#"cp -a . "$T/copy""#, AnExactCopy),
    ("cp", r#"cp -rL . "$T/x"; cd "$T/x"; find ."#, EverythingThroughLinks),
    ("rsync", r#"rsync -a@-1 ./ "$T/copy"; rsync -ai@-1 --delete ./ "$T/copy""#, AnExactCopy),
    ("rsync", r#"rsync -aL ./ "$T/x"; cd "$T/x"; find ."#, EverythingThroughLinks),
    (
        "tar",
        r#"mkdir "$T/copy"; tar --format=posix -cf - . | tar -C "$T/copy" -xpf -"#,
        AnExactCopy,
    ),
    ("tar", "tar -cf - . | tar -tf -", Everything),
    ("tar", "tar -chf - . | tar -tf -", EverythingThroughLinks),
    ("tar", r#"tar -cf "$T/t" .; tar -df "$T/t"; tar -tf "$T/t""#, Everything),
    ("cpio", r#"mkdir "$T/copy"; find . -depth | cpio -pdm --quiet "$T/copy""#, ACopy),
    ("zip", r#"zip -qry "$T/z.zip" .; unzip -q "$T/z.zip" -d "$T/copy""#, ACopy),
    ("diff", r#"diff -r --no-dereference . "$D"; echo same"#, AsOnDisk),
    ("git", r#"git diff --no-index . "$D"; echo same"#, AsOnDisk),
    ("sha256sum", "find . -type f -print0 | xargs -0 -n 3 -P 8 sha256sum", AsOnDisk),
    ("b3sum", "find . -type f -exec b3sum {} +", AsOnDisk),
    ("busybox", r#"mkdir "$T/copy"; busybox tar -cf - . | tar -C "$T/copy" -xpf -"#, ACopy),
];

/// Python prints paths with `p`; `t` is a directory to write in.
macro_rules! python {
    ($($line:literal),+) => {
        concat!("python3 -c '\nimport os, sys\nt = sys.argv[1]\np = print\n", $($line, "\n",)+ r#"' "$T""#)
    };
}

const PROGRAMS: &[Row] = &[
    (
        "python3",
        python!(
            "for at, folders, files in os.walk(\".\"):",
            "    for name in folders + files: p(at + \"/\" + name)"
        ),
        Everything,
    ),
    (
        "python3",
        python!(
            "for at, folders, files in os.walk(\".\", followlinks=True):",
            "    for name in folders + files: p(at + \"/\" + name)"
        ),
        EverythingThroughLinks,
    ),
    (
        "python3",
        python!(
            "for at, _, files, _ in os.fwalk(\".\"):",
            "    for name in files: p(at + \"/\" + name)"
        ),
        Files,
    ),
    (
        "python3",
        python!(
            "from glob import glob",
            "for pattern in \"**\", \"**/.*\": p(*glob(pattern, recursive=True), sep=\"\\n\")"
        ),
        EverythingThroughLinks,
    ),
    (
        "python3",
        python!("import pathlib", "for path in pathlib.Path(\".\").rglob(\"*\"): p(path)"),
        Everything,
    ),
    (
        "python3",
        python!(
            "import pathlib",
            "for path in pathlib.Path(\".\").rglob(\"*\"):",
            "    if path.is_file(): p(path, path.stat().st_size == len(path.read_bytes()))"
        ),
        AsOnDisk,
    ),
    (
        "python3",
        python!("import shutil", "shutil.copytree(\".\", t + \"/copy\", symlinks=True)"),
        AnExactCopy,
    ),
    (
        "python3",
        python!(
            "import filecmp, shutil",
            "shutil.copytree(\".\", t + \"/x\")",
            "def same(c): return not (c.left_only or c.right_only or c.diff_files or c.funny_files) and all(map(same, c.subdirs.values()))",
            "p(same(filecmp.dircmp(\".\", t + \"/x\", ignore=[])))"
        ),
        AsOnDisk,
    ),
    (
        "node",
        r#"node -e 'const fs = require("fs"); for (const p of fs.readdirSync(".", {recursive: true})) console.log(p)'"#,
        EverythingThroughLinks,
    ),
];

/// The kind and content of a path.
#[derive(Debug, PartialEq, Eq)]
enum Thing {
    File(Vec<u8>),
    Link(Vec<u8>),
    Folder,
}

/// Returns all paths below a directory with mode and time, from a plain readdir walk.
fn walk(folder: &Path, through_links: bool) -> BTreeMap<String, (Thing, u32, i128)> {
    let mut all = BTreeMap::new();
    let mut open = vec![String::new()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(folder.join(&at)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = if at.is_empty() { name } else { format!("{at}/{name}") };
            let real = folder.join(&path);
            let meta =
                if through_links { fs::metadata(&real) } else { fs::symlink_metadata(&real) }
                    .unwrap();
            let thing = if meta.is_dir() {
                open.push(path.clone());
                Thing::Folder
            } else if meta.is_symlink() {
                Thing::Link(fs::read_link(&real).unwrap().into_os_string().into_encoded_bytes())
            } else {
                Thing::File(fs::read(&real).unwrap())
            };
            let time = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
            let twice = all.insert(path.clone(), (thing, meta.permissions().mode(), time));
            assert!(twice.is_none(), "{path} is visited twice");
        }
    }
    all
}

/// Returns a swarm whose workers have directories of their own and difficult names.
fn store() -> TestStore {
    let store = swarm();
    for path in [
        "outputs/deep/er/report.md",
        "outputs/a b  c.txt",
        "outputs/-rf",
        "outputs/*.log",
        "outputs/.hidden",
    ] {
        store.write(format!("workers/beta/{path}"), format!("own: {path}\n"));
    }
    store.write("workers/beta/outputs/bytes.bin", (0..=255).collect::<Vec<u8>>());
    store.write("workers/gamma/evidence.txt", "mine\n");
    store
}

/// Parses output lines as paths from the root, sorted and without the root itself.
fn lines(out: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(out);
    let path =
        |line: &str| line.strip_prefix("./").unwrap_or(line).trim_end_matches('/').to_owned();
    let mut lines: Vec<String> =
        text.lines().map(path).filter(|line| !line.is_empty() && line != ".").collect();
    lines.sort();
    lines
}

/// Returns the lines that are in only one of two sorted lists.
fn in_one_list_only<'a>(these: &'a [String], those: &[String]) -> Vec<&'a String> {
    these.iter().filter(|line| those.binary_search(line).is_err()).take(3).collect()
}

fn check(rows: &[Row]) {
    check_in(&store(), rows);
}

fn check_in(store: &TestStore, rows: &[Row]) {
    let mount = Mount::new(&store.path());
    let scratch = tempfile::tempdir().unwrap();
    let disk = scratch.path().join("disk");
    fs::create_dir(&disk).unwrap();
    lay_out(&see_folder(&store.tree(), "").unwrap(), &disk);
    for place in ["", "runs/r1/", "workers/beta/"] {
        assert!(!mount.read(&format!("{place}evidence.4k.txt")).is_empty());
    }
    let (plain, through) = (walk(&mount.path(), false), walk(&mount.path(), true));
    let listed = |all: &BTreeMap<String, (Thing, u32, i128)>,
                  wanted: fn(&Thing) -> bool|
     -> Vec<String> {
        all.iter().filter(|(_, (thing, ..))| wanted(thing)).map(|(path, _)| path.clone()).collect()
    };
    let is_file = |thing: &Thing| matches!(thing, Thing::File(_));
    let mut wrong = Vec::new();
    for (tool, command, gives) in rows {
        if !is_here(tool) {
            continue;
        }
        let run = |folder: &Path| {
            let room = tempfile::tempdir_in(scratch.path()).unwrap();
            let out =
                shell(command, folder).env("T", room.path()).env("D", &disk).output().unwrap();
            (out, room)
        };
        let (out, room) = run(&mount.path());
        let found = lines(&out.stdout);
        let expected = match gives {
            Everything => listed(&plain, |_| true),
            Files => listed(&plain, is_file),
            Folders => listed(&plain, |thing| *thing == Thing::Folder),
            FilesAndLinks => listed(&plain, |thing| *thing != Thing::Folder),
            EverythingThroughLinks => listed(&through, |_| true),
            FilesThroughLinks => listed(&through, is_file),
            AsOnDisk => lines(&run(&disk).0.stdout),
            ACopy | AnExactCopy => Vec::new(),
        };
        let complaint = String::from_utf8_lossy(&out.stderr);
        let what = if !out.status.success() || !complaint.is_empty() {
            format!("{}: {complaint}", out.status)
        } else if found != expected {
            let (too_much, missing) =
                (in_one_list_only(&found, &expected), in_one_list_only(&expected, &found));
            format!(
                "{} lines, not {}; too much: {too_much:?}; missing: {missing:?}",
                found.len(),
                expected.len()
            )
        } else if let ACopy | AnExactCopy = gives {
            match difference(
                &plain,
                &walk(&room.path().join("copy"), false),
                matches!(gives, AnExactCopy),
            ) {
                Some(what) => what,
                None => continue,
            }
        } else if expected.is_empty() {
            "nothing comes out".into()
        } else {
            continue;
        };
        wrong.push(format!("{tool}: {command}\n    {what}"));
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

type Walked = BTreeMap<String, (Thing, u32, i128)>;

/// Returns the first path at which a copy differs from the original.
fn difference(tree: &Walked, copy: &Walked, exact: bool) -> Option<String> {
    let same = |a: &(Thing, u32, i128), b: &(Thing, u32, i128)| {
        a.0 == b.0 && (!exact || (a.1, a.2) == (b.1, b.2))
    };
    let at =
        tree.keys().chain(copy.keys()).find(|path| match (tree.get(*path), copy.get(*path)) {
            (Some(a), Some(b)) => !same(a, b),
            _ => true,
        })?;
    Some(format!("the copy differs at {at}: {:?}, not {:?}", copy.get(at), tree.get(at)))
}

/// Promise: Tools that walk a tree visit every listed entry.
#[test]
fn walking_tools_visit_every_listed_entry() {
    needs_fuse!();
    check(WALKS);
}

/// Promise: Tools that search a tree search all of it.
#[test]
fn searching_tools_search_the_whole_tree() {
    needs_fuse!();
    check(SEARCHES);
}

/// Promise: Tools that copy a tree copy all of it.
#[test]
fn copying_tools_copy_the_whole_tree() {
    needs_fuse!();
    check(COPIES);
}

#[test]
fn walking_libraries_visit_every_listed_entry() {
    needs_fuse!();
    check(PROGRAMS);
}

#[test]
fn ignore_rules_of_a_worker_apply_as_on_disk() {
    needs_fuse!();
    let store = store();
    for (path, text) in [
        (".ignore", "*.bin\n"),
        (".gitignore", "deep/\n"),
        (".rgignore", "a b*\n"),
        (".fdignore", "-rf\n"),
        (".git/HEAD", "ref: refs/heads/main\n"),
        (".git/config", "[core]\n"),
    ] {
        store.write(format!("workers/beta/outputs/{path}"), text);
    }
    check_in(&store, RULED);
    // The control: a rule is applied.
    let mount = Mount::new(&store.path());
    let ignored = || mount.shell(r#"cd "$M" && rg --files | grep bytes.bin"#).stdout;
    assert!(ignored().is_empty());
    fs::remove_file(store.at("workers/beta/outputs/.ignore")).unwrap();
    eventually("the rule is gone", || (!ignored().is_empty()).then_some(()));
}

/// Promise: No ignore file or repository appears that no worker wrote.
#[test]
fn no_ignore_files_or_repositories_are_invented() {
    needs_fuse!();
    let store = store();
    let mount = Mount::new(&store.path());
    let walked = walk(&mount.path(), true);
    let folders = walked
        .iter()
        .filter(|(_, (thing, ..))| *thing == Thing::Folder)
        .map(|(path, _)| path.as_str());
    for folder in folders.chain([""]) {
        for name in [
            ".git",
            ".gitignore",
            ".gitattributes",
            ".ignore",
            ".rgignore",
            ".fdignore",
            ".hg",
            ".svn",
            ".jj",
        ] {
            let error = fs::symlink_metadata(mount.at(folder).join(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{folder}/{name}");
        }
    }
    for folder in ["", "workers/alpha", "runs/latest"] {
        let out = shell("git status", &mount.at(folder)).output().unwrap();
        assert_eq!(out.status.code(), Some(128), "{out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("not a git repository"), "{out:?}");
    }
}
