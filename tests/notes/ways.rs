//! Ways of editors and tools to write: each leaves the same files in the notes of a mount as in a
//! folder on disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::{mount, store};
use crate::needs_fuse;
use crate::support::some;
use crate::support::tool::{is_here, shell};

/// A tool, and a script that writes with it. The script runs in a folder with the file `old`, and
/// the folder `dir` with `dir/inner`, and is killed after a minute. `$T` is a scratch folder on
/// disk, which has a copy of these.
type WritingTool = (&'static str, &'static str);

const WAYS: [WritingTool; 68] = [
    ("bash", "echo new > new"),
    ("bash", "echo more >> old"),
    ("bash", "> old"),
    ("bash", ": > empty"),
    ("bash", "set -o noclobber; ! echo x > old; echo y > new"),
    ("bash", "exec 3<> old; read -r -u 3 line; echo changed >&3"),
    ("bash", "(echo a; echo b >&2) > both 2>&1"),
    ("bash", "for i in {1..50}; do echo $i >> log; done"),
    ("bash", "exec 3> open; rm open; echo x >&3; echo kept > kept"),
    ("bash", "umask 077; echo secret > secret; mkdir closed"),
    ("bash", "umask 000; echo open > open; mkdir opened"),
    ("dash", "dash -c 'echo new > new; echo more >> new'"),
    ("busybox", "busybox sh -c 'echo new > new'; busybox sed -i s/line/LINE/ old"),
    ("touch", "touch new; touch -d 2001-02-03T04:05:06Z old"),
    ("touch", "touch -m -d 1960-01-01T00:00:00.5Z old; touch -a -d 2040-01-01 old"),
    ("tee", "echo x | tee one two > three"),
    ("tee", "echo x | tee -a old"),
    ("cp", "cp old new; cp -f new old; cp old dir/"),
    ("cp", "cp -r dir copy; cp -a dir archive"),
    ("cp", "cp -p old new; cp --preserve=timestamps dir/inner kept"),
    ("cp", "cp -r \"$T/dir\" from-disk; cp --reflink=auto old clone"),
    ("cp", "cp --sparse=always old sparse; cp --remove-destination old dir/inner"),
    ("mv", "mv old new"),
    ("mv", "echo x > new; mv new old"),
    ("mv", "mv dir renamed; echo y > renamed/inner; mv renamed/inner ."),
    ("mv", "mv -n old dir/inner; mv old dir/"),
    ("mv", "mv dir/inner \"$T/out\"; mv \"$T/old\" from-disk"),
    ("rm", "rm old; rm -r dir"),
    ("rmdir", "mkdir -p a/b/c; rmdir a/b/c a/b"),
    ("mkdir", "mkdir -p a/b/c; mkdir -m 700 closed"),
    ("install", "install -D -m 750 old a/b/tool; install -d d1/d2"),
    ("truncate", "truncate -s 3 old; truncate -s 1M holes; truncate -s +5 dir/inner"),
    (
        "dd",
        "dd if=old of=new bs=3 status=none; dd if=/dev/zero of=old bs=1 count=2 conv=notrunc status=none",
    ),
    (
        "dd",
        "dd if=old of=new oflag=append conv=notrunc,fsync status=none; dd if=/dev/zero of=z bs=4k count=3 oflag=direct status=none",
    ),
    ("fallocate", "fallocate -l 10000 space; fallocate -o 4096 -l 4096 -p space"),
    ("chmod", "chmod 600 old; chmod -R u+x,go-rwx dir"),
    ("sed", "sed -i s/line/LINE/ old; sed -i.bak s/LINE/end/ old"),
    ("perl", "perl -pi -e s/line/LINE/ old; perl -e 'open F,\">>\",\"old\"; print F 1; close F'"),
    ("ed", "printf 'a\\nadded\\n.\\nw\\nq\\n' | ed -s old"),
    ("ex", "ex -s -c 's/line/LINE/' -c 'wq' old </dev/null"),
    (
        "ex",
        "ex -s -c 'set backup backupcopy=yes' -c 'normal ohi' -c 'wq' old </dev/null; rm -f old~",
    ),
    ("ex", "ex -s -c 'set writebackup backupcopy=no' -c 'normal ohi' -c 'wq' old </dev/null"),
    ("ex", "printf 'in\\n' > in; ex -s -c 'r in' -c 'w! out' -c 'q!' old </dev/null"),
    ("awk", "awk '{ print > \"out\" $1 }' old; awk '{ print >> \"old\" }' dir/inner"),
    ("gawk", "gawk -i inplace '{ print NR, $0 }' old"),
    ("sort", "printf 'b\\na\\n' > s; sort -o s s"),
    ("split", "seq 100 | split -l 30 - part-"),
    ("tar", "tar cf t.tar dir old; mkdir out; tar xf t.tar -C out; tar rf t.tar old"),
    ("tar", "tar cf - -C \"$T\" dir | tar xf -"),
    (
        "cpio",
        "echo old | cpio -o --quiet > a.cpio; mkdir out; cd out; cpio -id --quiet < ../a.cpio; rm ../a.cpio",
    ),
    ("gzip", "gzip -n -k old; rm old; gzip -d old.gz"),
    ("xz", "xz old; unxz old.xz"),
    ("zstd", "zstd -q --rm old; zstd -q -d old.zst"),
    ("zip", "zip -q -r a.zip dir old; rm -r dir; unzip -q -o a.zip; rm a.zip"),
    ("rsync", "rsync -a \"$T/\" copy/; echo more >> \"$T/old\"; rsync -a \"$T/\" copy/"),
    ("rsync", "rsync -a --inplace \"$T/old\" old; rsync -a --delete \"$T/dir/\" dir/"),
    (
        "rsync",
        "echo more >> \"$T/dir/inner\"; rsync -r --append \"$T/dir/\" dir/; echo x > \"$T/old\"; rsync --backup \"$T/old\" old",
    ),
    (
        "git",
        "git init -q r; cd r; echo 1 > a; git add a; git -c user.name=n -c user.email=e commit -qm one; git status --porcelain; rm -rf .git",
    ),
    (
        "git",
        "git init -q r; cd r; cp ../old a; git add a; git -c user.name=n -c user.email=e commit -qm one; git checkout -qb b; echo 2 > a; git -c user.name=n -c user.email=e commit -qam two; git checkout -q -; git gc -q; git log --format=%s b; git fsck --strict; rm -rf .git",
    ),
    (
        "git",
        "git clone -q --bare \"$T\" x 2>/dev/null || true; rm -rf x; git init -q --bare y; rm -r y",
    ),
    (
        "patch",
        "printf '%s\\n' '--- old' '+++ old' '@@ -1,2 +1,2 @@' '-line 1' '+LINE 1' ' line 2' > p; git apply p",
    ),
    (
        "python3",
        "python3 -c 'open(\"new\",\"w\").write(\"x\"); f=open(\"old\",\"r+\"); f.seek(2); f.write(\"N\"); f.close()'",
    ),
    (
        "python3",
        "python3 -c 'import os,tempfile; fd,n=tempfile.mkstemp(dir=\".\"); os.write(fd,b\"x\"); os.fsync(fd); os.replace(n,\"old\"); os.chmod(\"old\", 0o644)'",
    ),
    (
        "python3",
        "python3 -c 'import mmap; f=open(\"old\",\"r+b\"); m=mmap.mmap(f.fileno(),0); m[0:4]=b\"LINE\"; m.flush(); m.close()'",
    ),
    (
        "python3",
        "python3 -c 'import os; f=os.open(\"log\",os.O_CREAT|os.O_APPEND|os.O_WRONLY); g=os.open(\"log\",os.O_APPEND|os.O_WRONLY); [os.write(h,b\"%d\\n\"%i) for i in range(20) for h in (f,g)]'",
    ),
    (
        "python3",
        "python3 -c 'import json,pathlib,shutil; p=pathlib.Path(\"j.json\"); p.write_text(json.dumps({\"a\":1})); shutil.copytree(\"dir\",\"copy\"); shutil.move(\"copy\",\"moved\")'",
    ),
    (
        "python3",
        "python3 -c 'import fcntl; f=open(\"old\",\"a\"); fcntl.flock(f,fcntl.LOCK_EX); fcntl.lockf(f,fcntl.LOCK_EX); f.write(\"locked\\n\")'",
    ),
    (
        "python3",
        "python3 -c 'import sqlite3; c=sqlite3.connect(\"d.db\"); c.execute(\"pragma journal_mode=wal\"); c.execute(\"create table t(a)\"); c.executemany(\"insert into t values(?)\",[(i,) for i in range(99)]); c.commit(); print(c.execute(\"select sum(a) from t\").fetchall(), c.execute(\"pragma integrity_check\").fetchall()); c.close()'",
    ),
];

/// Bytes, permissions and, of files that a script dates, the time of the last write, by path.
type Files = BTreeMap<PathBuf, (bool, u32, Vec<u8>, Option<i64>)>;

/// Reads a tree. Times of the last ten years are those of the test and differ.
fn tree(top: &Path) -> Files {
    let mut found = Files::new();
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            if meta.is_dir() {
                folders.push(path.clone());
            }
            let recent = 1_500_000_000..2_100_000_000;
            let time = Some(meta.mtime()).filter(|time| !recent.contains(time));
            let path = path.strip_prefix(top).unwrap().to_path_buf();
            found.insert(path, (meta.is_dir(), meta.mode() & 0o7777, bytes, time));
        }
    }
    found
}

fn prepare(folder: &Path) {
    fs::create_dir_all(folder.join("dir")).unwrap();
    fs::write(folder.join("old"), "line 1\nline 2\n").unwrap();
    fs::write(folder.join("dir/inner"), "inner\n").unwrap();
}

/// Runs a script in a folder.
fn write(script: &str, folder: &Path) -> Output {
    let scratch = tempfile::tempdir().unwrap();
    prepare(scratch.path());
    let mut command =
        shell(&format!("timeout 60 bash -euo pipefail <<'END'\n{script}\nEND"), folder);
    command.env("T", scratch.path()).env("HOME", scratch.path()).output().unwrap()
}

/// Promise: Editors and tools write notes in a mount as in any folder.
#[test]
fn every_way_of_writing_gives_the_files_of_a_folder_on_disk() {
    needs_fuse!();
    let store = store();
    let mount = mount(&store);
    let disk = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (number, (tool, script)) in some(WAYS.iter().enumerate()) {
        if !is_here(if *tool == "patch" { "git" } else { tool }) {
            continue;
        }
        let (here, there) =
            (mount.at(&format!("supervisor/{number}")), disk.path().join(number.to_string()));
        let outputs = [&here, &there].map(|folder| {
            prepare(folder);
            write(script, folder)
        });
        let [on_mount, on_disk] = &outputs;
        assert!(on_disk.status.success(), "{script}: {on_disk:?}");
        let stored = store.path().join("supervisor").join(number.to_string());
        let (seen, kept, expected) = (tree(&here), tree(&stored), tree(&there));
        if !on_mount.status.success() || on_mount.stdout != on_disk.stdout {
            wrong.push(format!("{script}: {on_mount:?}"));
        } else if seen != expected || kept != expected {
            let differ = |found: &Files| -> Vec<PathBuf> {
                let all = found.keys().chain(expected.keys());
                all.filter(|path| found.get(*path) != expected.get(*path)).cloned().collect()
            };
            wrong.push(format!("{script}: {:?}, in the store {:?}", differ(&seen), differ(&kept)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// No way of writing changes anything outside of the notes. Its control is the test above.
#[test]
fn no_way_of_writing_works_outside_of_the_notes() {
    needs_fuse!();
    let store = store();
    store.write("workers/w1/old", "line 1\nline 2\n");
    store.write("workers/w1/dir/inner", "inner\n");
    let mount = mount(&store);
    let before = tree(&store.path().join("workers"));
    for (tool, script) in some(WAYS) {
        if !is_here(if tool == "patch" { "git" } else { tool }) {
            continue;
        }
        let ended = write(script, &mount.at("workers/w1"));
        let text = String::from_utf8_lossy(&ended.stderr).to_lowercase();
        // perl warns only.
        let refused = !ended.status.success() || text.contains("read-only file system");
        assert!(refused, "{script}: {ended:?}");
        assert!(!text.contains("input/output error"), "{script}: {text}");
        assert_eq!(tree(&store.path().join("workers")), before, "{script}");
    }
}
