//! Every tool reads the exact content of a generated file. Each table row is a tool, a command and
//! its expected output; there is a table per family.
//!
//! The tree without a kernel provides the expected content, so a tool is the first to read its file
//! through the mount, with cold kernel caches. Each command must have the exact output, exit with 0
//! and print nothing to standard error.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use super::Gives::{AsOnDisk, TheBytes};
use super::{Row, difference};

use crate::mount::swarm;
use crate::needs_fuse;
use crate::support::tool::{is_here, lay_out, shell};
use crate::support::{Mount, TestStore, see, some};

const TEXT: &[Row] = &[
    ("cat", r#"cat "$F""#, TheBytes),
    ("cat", r#"cat <"$F""#, TheBytes),
    ("cat", r#"cat "$F" - "$F" <"$F""#, AsOnDisk),
    ("wc", r#"wc "$F""#, AsOnDisk),
    ("wc", r#"wc -c "$F""#, AsOnDisk),
    ("wc", r#"wc -c <"$F""#, AsOnDisk),
    ("wc", r#"wc -lmL "$F""#, AsOnDisk),
    ("head", r#"head -n 7 "$F""#, AsOnDisk),
    ("head", r#"head -n -3 "$F""#, AsOnDisk),
    ("head", r#"head -c 100 "$F""#, AsOnDisk),
    ("head", r#"head -c -100 "$F""#, AsOnDisk),
    ("head", r#"head -c 10000000 "$F""#, TheBytes),
    ("tail", r#"tail -n 5 "$F""#, AsOnDisk),
    ("tail", r#"tail -n +3 "$F""#, AsOnDisk),
    ("tail", r#"tail -c 100 "$F""#, AsOnDisk),
    ("tail", r#"tail -c +100 "$F""#, AsOnDisk),
    ("tail", r#"tail -c 10000000 "$F""#, TheBytes),
    ("grep", r#"grep -n '' "$F""#, AsOnDisk),
    ("grep", r#"grep -c . "$F""#, AsOnDisk),
    ("grep", r#"grep -obE '[0-9]+' "$F""#, AsOnDisk),
    ("rg", r#"rg --no-config -n '' "$F""#, AsOnDisk),
    ("rg", r#"rg --no-config --mmap -N '^' "$F""#, TheBytes),
    ("rg", r#"rg --no-config --no-mmap -N '^' "$F""#, TheBytes),
    ("rg", r#"rg --no-config -U -c '[a-z]\n' "$F""#, AsOnDisk),
    ("less", r#"less "$F""#, TheBytes),
    ("more", r#"more "$F""#, AsOnDisk),
    ("ex", r#"ex -s -c '%print' -c 'quit!' "$F""#, AsOnDisk),
    ("ed", r#"printf '%s\n' ',p' q | ed -s "$F""#, TheBytes),
    ("sort", r#"sort "$F""#, AsOnDisk),
    ("uniq", r#"uniq -c "$F""#, AsOnDisk),
    ("comm", r#"comm -3 <(sort "$F") <(sort "$E"); comm --nocheck-order "$F" "$F""#, AsOnDisk),
    ("join", r#"join --nocheck-order -j 1 "$F" "$E" | sed -n 1,99p"#, AsOnDisk),
    ("awk", r#"awk '{n += length($0); print NR ": " $0} END {print n}' "$F""#, AsOnDisk),
    ("mawk", r#"mawk '{print}' "$F""#, TheBytes),
    ("sed", r#"sed -n p "$F""#, TheBytes),
    ("sed", r#"sed -n '$=;$p' "$F""#, AsOnDisk),
    ("tr", r#"tr a-z A-Z <"$F""#, AsOnDisk),
    ("cut", r#"cut -c 3-20 "$F""#, AsOnDisk),
    ("paste", r#"paste "$F" "$E""#, AsOnDisk),
    ("fold", r#"fold -w 40 "$F""#, AsOnDisk),
    ("fmt", r#"fmt "$F""#, AsOnDisk),
    ("expand", r#"expand "$F""#, AsOnDisk),
    ("pr", r#"pr -t "$F""#, AsOnDisk),
    ("nl", r#"nl -ba "$F""#, AsOnDisk),
    ("column", r#"column -t "$F""#, AsOnDisk),
    ("tac", r#"tac "$F""#, AsOnDisk),
    ("tac", r#"tac "$F" | tac"#, TheBytes),
    ("rev", r#"rev "$F""#, AsOnDisk),
    ("shuf", r#"shuf "$F" | sort"#, AsOnDisk),
    ("iconv", r#"iconv -f UTF-8 -t UTF-16LE "$F" | iconv -f UTF-16LE -t UTF-8"#, TheBytes),
    ("split", r#"split -b 1000 -a 4 "$F" "$T/part." && cat "$T"/part.*"#, TheBytes),
    ("split", r#"split -n 3 "$F" "$T/part." && cat "$T"/part.*"#, TheBytes),
    ("split", r#"split -n l/3 "$F" "$T/part." && wc -c "$T"/part.* | awk '{print $1}'"#, AsOnDisk),
    ("csplit", r#"csplit -s -f "$T/part." "$F" 3 && cat "$T"/part.*"#, TheBytes),
    ("strings", r#"strings -n 8 "$F""#, AsOnDisk),
];

const COPIES: &[Row] = &[
    ("cp", r#"cp "$F" "$T/x" && cat "$T/x""#, TheBytes),
    ("cp", r#"cp -a "$F" "$T/x" && cat "$T/x" && stat -c '%a %u %g %y' "$T/x""#, AsOnDisk),
    ("cp", r#"cp --reflink=auto --sparse=always "$F" "$T/x" && cat "$T/x""#, TheBytes),
    ("install", r#"install -m 600 "$F" "$T/x" && cat "$T/x""#, TheBytes),
    ("rsync", r#"rsync -a "$F" "$T/x" && cat "$T/x""#, TheBytes),
    (
        "rsync",
        r#"head -c 500 "$F" >"$T/x"; rsync -a --inplace --no-whole-file "$F" "$T/x" && cat "$T/x""#,
        TheBytes,
    ),
    (
        "rsync",
        r#"head -c 500 "$F" >"$T/x"; rsync -a --append-verify "$F" "$T/x" && cat "$T/x""#,
        TheBytes,
    ),
    (
        "rsync",
        r#"rsync -a "$F" "$T/"; rsync -ac --out-format='sent again: %n' "$F" "$T/"; cat "$T/$F""#,
        TheBytes,
    ),
    ("dd", r#"dd if="$F" status=none"#, TheBytes),
    ("dd", r#"dd if="$F" bs=1 skip=1 count=999 status=none"#, AsOnDisk),
    ("dd", r#"dd if="$F" bs=1M iflag=fullblock status=none"#, TheBytes),
    ("dd", r#"dd if="$F" bs=64K iflag=direct status=none"#, TheBytes),
    ("tee", r#"tee "$T/x" <"$F" >/dev/null && cat "$T/x""#, TheBytes),
    ("ln", r#"ln -s "$PWD/$F" "$T/x" && cat "$T/x""#, TheBytes),
    ("curl", r#"curl -sS "file://$PWD/$F""#, TheBytes),
    ("curl", r#"curl -sS -r 10-99 "file://$PWD/$F""#, AsOnDisk),
    ("busybox", r#"busybox cat "$F""#, TheBytes),
    ("busybox", r#"busybox cp "$F" "$T/x" && busybox tail -c +1 "$T/x""#, TheBytes),
];

const ARCHIVES: &[Row] = &[
    ("tar", r#"tar -cf "$T/t" "$F" && tar -xOf "$T/t""#, TheBytes),
    ("tar", r#"tar -cf - "$F" | tar -tvf -"#, AsOnDisk),
    ("tar", r#"tar --sparse --format=posix -czf "$T/t" "$F" && tar -xOzf "$T/t""#, TheBytes),
    ("tar", r#"tar -cf "$T/t" "$F" && tar -df "$T/t" && cat "$F""#, TheBytes),
    (
        "cpio",
        r#"echo "$F" | cpio -o --quiet | (cd "$T" && cpio -i --quiet) && cat "$T/$F""#,
        TheBytes,
    ),
    ("zip", r#"zip -q "$T/z.zip" "$F" && unzip -p "$T/z.zip""#, TheBytes),
    (
        "unzip",
        r#"zip -q - "$F" >"$T/z.zip" && unzip -q "$T/z.zip" -d "$T" && cat "$T/$F""#,
        TheBytes,
    ),
    ("gzip", r#"gzip -c "$F" | gzip -dc"#, TheBytes),
    ("gzip", r#"gzip -nc "$F" >"$T/x.gz" && gzip -l "$T/x.gz" | awk '{print $1, $2}'"#, AsOnDisk),
    ("bzip2", r#"bzip2 -c "$F" | bzip2 -dc"#, TheBytes),
    ("xz", r#"xz -0c "$F" | xz -dc"#, TheBytes),
    ("zstd", r#"zstd -qc "$F" | zstd -qdc"#, TheBytes),
    ("busybox", r#"busybox tar -cf "$T/t" "$F" && busybox tar -xOf "$T/t""#, TheBytes),
];

const COMPARED: &[Row] = &[
    ("cmp", r#"cmp "$F" "$E" && echo same"#, AsOnDisk),
    ("cmp", r#"! cmp -n 900 "$F" <(tail -c +2 "$E")"#, AsOnDisk),
    ("diff", r#"diff "$F" "$E" && diff -q "$F" "$E" && echo same"#, AsOnDisk),
    ("diff", r#"! diff -u --label a --label b "$F" <(sed '2s/$/!/' "$E")"#, AsOnDisk),
    ("git", r#"git diff --no-index --exit-code "$F" "$E" && echo same"#, AsOnDisk),
    (
        "git",
        r#"sed '2s/$/!/' "$E" >"$T/x"; ! git diff --no-index "$F" "$T/x" | grep -c '^[-+]'"#,
        AsOnDisk,
    ),
    ("git", r#"git hash-object "$F""#, AsOnDisk),
    ("git", r#"git hash-object --no-filters "$F" && git hash-object --stdin <"$F""#, AsOnDisk),
    ("md5sum", r#"md5sum "$F""#, AsOnDisk),
    ("sha1sum", r#"sha1sum "$F""#, AsOnDisk),
    ("sha256sum", r#"sha256sum "$F""#, AsOnDisk),
    (
        "sha256sum",
        r#"(cd "$(dirname "$E")" && sha256sum "$F") >"$T/sums" && sha256sum -c "$T/sums""#,
        AsOnDisk,
    ),
    ("b2sum", r#"b2sum "$F""#, AsOnDisk),
    ("b3sum", r#"b3sum "$F""#, AsOnDisk),
    ("b3sum", r#"b3sum --no-mmap "$F""#, AsOnDisk),
    ("cksum", r#"cksum "$F""#, AsOnDisk),
    ("od", r#"od -An -tx1 "$F""#, AsOnDisk),
    ("hexdump", r#"hexdump -C "$F""#, AsOnDisk),
    ("xxd", r#"xxd "$F" | xxd -r"#, TheBytes),
    ("base64", r#"base64 "$F" | base64 -d"#, TheBytes),
    ("busybox", r#"busybox md5sum "$F" && busybox wc "$F" && busybox cmp "$F" "$E""#, AsOnDisk),
];

const DESCRIBED: &[Row] = &[
    (
        "test",
        r#"test -s "$F" && test -r "$F" && test ! -x "$F" && test -f "$F" && test ! -L "$F" && echo yes"#,
        AsOnDisk,
    ),
    ("test", r#"test ! "$F" -nt "$E" && test ! "$F" -ot "$E" && echo "of one time""#, AsOnDisk),
    ("stat", r#"stat -c '%n %s %F %a %u %g %y' "$F""#, AsOnDisk),
    ("ls", r#"ls -l --full-time "$F""#, AsOnDisk),
    (
        "find",
        r#"find "$F" -type f -size "$(wc -c <"$E")c" ! -empty ! -newer "$E" -printf '%f %s %m\n'"#,
        AsOnDisk,
    ),
    ("du", r#"du -b "$F""#, AsOnDisk),
    (
        "du",
        r#"[[ $(du -B 512 "$F" | cut -f 1) -ge $(($(wc -c <"$E") / 512)) ]] && echo "of some blocks""#,
        AsOnDisk,
    ),
    ("file", r#"file "$F""#, AsOnDisk),
    ("file", r#"file --brief --mime "$F""#, AsOnDisk),
    ("busybox", r#"busybox stat -c '%n %s' "$F""#, AsOnDisk),
];

const SHELLS: &[Row] = &[
    ("bash", r#"mapfile -t lines <"$F"; printf '%s\n' "${#lines[@]}" "${lines[@]}""#, AsOnDisk),
    ("bash", r#"printf '%s' "$(<"$F")""#, AsOnDisk),
    ("bash", r#"while IFS= read -r line; do printf '%s\n' "$line"; done <"$F""#, TheBytes),
    ("bash", r#"exec {a}<"$F" {b}<"$F"; head -n 2 <&"$b" >/dev/null; cat <&"$a""#, TheBytes),
    ("bash", r#"IFS= read -rd '' text <"$F" || printf '%s' "$text""#, TheBytes),
    ("bash", r#"cat <<<"$(cat "$F")""#, AsOnDisk),
    ("bash", r#"cat "$F" | tac | tac >"$T/x"; mv "$T/x" "$T/y"; cat <"$T/y""#, TheBytes),
    (
        "dash",
        r#"dash -c 'while IFS= read -r line; do printf "%s\n" "$line"; done' <"$F""#,
        TheBytes,
    ),
    ("xargs", r#"xargs -d '\n' printf '%s\n' <"$F""#, TheBytes),
    ("xargs", r#"xargs -a "$F" -d '\n' -n 500 echo | wc"#, AsOnDisk),
];

const PROGRAMS: &[Row] = &[
    ("python3", python!(r#"out = open(f, "rb").read()"#), TheBytes),
    ("python3", python!(r#"out = open(f, "rb", 0).read()"#), TheBytes),
    ("python3", python!(r#"out = b"".join(open(f, "rb"))"#), TheBytes),
    ("python3", python!(r#"out = "".join(open(f, newline="")).encode()"#), TheBytes),
    (
        "python3",
        python!(r#"import pathlib; p = pathlib.Path(f); out = p.read_bytes()[:p.stat().st_size]"#),
        TheBytes,
    ),
    ("python3", python!(r#"d = os.open(f, 0); out = os.read(d, os.fstat(d).st_size)"#), TheBytes),
    (
        "python3",
        python!(r#"d = os.open(f, 0); out = b"".join(iter(lambda: os.read(d, 777), b""))"#),
        TheBytes,
    ),
    (
        "python3",
        python!(r#"d = open(f, "rb"); n = d.seek(0, 2); d.seek(0); out = d.read(n)"#),
        TheBytes,
    ),
    (
        "python3",
        python!(r#"d = open(f, "rb"); d.seek(-50, 2); out = d.read() + b"%d" % d.tell()"#),
        AsOnDisk,
    ),
    (
        "python3",
        python!(r#"d = os.open(f, 0); n = os.fstat(d).st_size; out = os.pread(d, 99, n - 9)"#),
        AsOnDisk,
    ),
    (
        "python3",
        python!(r#"d = os.open(f, 0); out = b"%d %d" % (os.lseek(d, 0, 3), os.lseek(d, 0, 4))"#),
        AsOnDisk,
    ),
    (
        "python3",
        python!(
            r#"import mmap; m = mmap.mmap(os.open(f, 0), 0, access=mmap.ACCESS_READ); out = m[:]"#
        ),
        TheBytes,
    ),
    (
        "python3",
        python!(
            r#"import mmap; m = mmap.mmap(os.open(f, 0), 0, access=mmap.ACCESS_COPY); m[:1] = b"X"; out = m[:]"#
        ),
        AsOnDisk,
    ),
    (
        "python3",
        python!(
            r#"import mmap; m = mmap.mmap(os.open(f, 0), 0, access=mmap.ACCESS_READ); out = b"%d" % m.rfind(b"e")"#
        ),
        AsOnDisk,
    ),
    (
        "python3",
        python!(
            r#"import shutil; shutil.copyfile(f, t + "/x"); out = open(t + "/x", "rb").read()"#
        ),
        TheBytes,
    ),
    (
        "python3",
        python!(r#"import shutil; x = shutil.copy2(f, t); out = b"%d" % os.stat(x).st_mtime_ns"#),
        AsOnDisk,
    ),
    (
        "python3",
        python!(
            r#"d = os.open(f, 0); r, w = os.pipe(); n = os.sendfile(w, d, 0, 999); out = os.read(r, n)"#
        ),
        AsOnDisk,
    ),
    (
        "python3",
        python!(
            r#"d = os.open(f, 0); r, w = os.pipe(); n = os.splice(d, w, 999); out = os.read(r, n)"#
        ),
        AsOnDisk,
    ),
    (
        "python3",
        python!(r#"import filecmp; out = b"%d" % filecmp.cmp(f, e, shallow=False)"#),
        AsOnDisk,
    ),
    (
        "python3",
        python!(
            r#"import zipfile; z = zipfile.ZipFile(t + "/z", "w"); z.write(f); out = z.read(f)"#
        ),
        TheBytes,
    ),
    (
        "python3",
        python!(
            r#"import tarfile; a = tarfile.open(t + "/t", "w"); a.add(f); a.close(); out = tarfile.open(t + "/t").extractfile(f).read()"#
        ),
        TheBytes,
    ),
    (
        "python3",
        python!(r#"import gzip; out = gzip.decompress(gzip.compress(open(f, "rb").read()))"#),
        TheBytes,
    ),
    (
        "python3",
        python!(r#"import hashlib; out = hashlib.file_digest(open(f, "rb"), "sha256").digest()"#),
        AsOnDisk,
    ),
    (
        "python3",
        python!(r#"import subprocess; out = subprocess.check_output(["cat"], stdin=open(f))"#),
        TheBytes,
    ),
    ("python3", python!(r#"import linecache; out = linecache.getline(f, 3).encode()"#), AsOnDisk),
    (
        "python3",
        python!(
            r#"import select; d = os.open(f, 0); out = b"%d" % len(select.select([d], [], [], 0)[0])"#
        ),
        AsOnDisk,
    ),
    ("perl", r#"perl -pe '' "$F""#, TheBytes),
    ("perl", r#"perl -e 'local $/; open(F, "<", $ARGV[0]); print -s F, "\n", <F>' "$F""#, AsOnDisk),
    (
        "perl",
        r#"perl -MFile::Copy -e 'copy($ARGV[0], "$ARGV[1]/x") or die' "$F" "$T" && cat "$T/x""#,
        TheBytes,
    ),
    (
        "node",
        r#"node -e 'process.stdout.write(require("fs").readFileSync(process.argv[1]))' "$F""#,
        TheBytes,
    ),
    (
        "node",
        r#"node -e 'require("fs").createReadStream(process.argv[1]).pipe(process.stdout)' "$F""#,
        TheBytes,
    ),
];

const JSON: &[Row] = &[
    ("jq", r#"jq . "$F""#, AsOnDisk),
    ("jq", r#"jq -c 'paths' "$F""#, AsOnDisk),
    (
        "jq",
        r#"jq -cn --slurpfile a "$F" '$a' && jq -Rs . "$F" && jq --stream -c . <"$F""#,
        AsOnDisk,
    ),
    (
        "python3",
        python!(r#"import json; d = json.load(open(f)); out = repr(d).encode()"#),
        AsOnDisk,
    ),
    ("python3", r#"python3 -m json.tool "$F""#, AsOnDisk),
    (
        "perl",
        r#"perl -MJSON::PP -e 'local $/; print JSON::PP->new->canonical->ascii->encode(decode_json(<>))' "$F""#,
        AsOnDisk,
    ),
    (
        "node",
        r#"node -e 'console.log(JSON.parse(require("fs").readFileSync(process.argv[1])))' "$F""#,
        AsOnDisk,
    ),
];

/// Returns a swarm with a worker whose evidence can be requested in any size.
fn store() -> TestStore {
    let store = swarm();
    let output: String = (0..9_000)
        .map(|n| format!("{n:05} checked host-{} — nothing to see\n", n * 7 % 1_000))
        .collect();
    store.worker("bulky", json!({"run_id": "r1"})).call(
        "bulky",
        1,
        "dump",
        format!("{output}Error: disk full\n"),
    );
    store
}

/// Small files of each kind. The large file is a new query, too large for one read.
const SMALL: [&str; 5] = [
    "README.md",
    "summary",
    "workers/alpha/index.json",
    "workers/alpha/summary",
    "runs/r1/evidence.txt",
];

/// Runs every command of `rows` on a small and a large file, and reports all failures.
fn check(rows: &[Row]) {
    check_on(rows, |number| {
        vec![
            SMALL[number % SMALL.len()].into(),
            format!("workers/bulky/evidence.{}.txt", 300_000 + number),
        ]
    });
}

fn check_on(rows: &[Row], files: impl Fn(usize) -> Vec<String>) {
    let store = store();
    let tree = store.tree();
    let mount = Mount::new(&store.path());
    let scratch = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (number, (tool, command, gives)) in rows.iter().enumerate() {
        if !is_here(tool) {
            continue;
        }
        for path in some(files(number)) {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
            let copies = scratch.path().join(format!("copies-{number}")).join(folder);
            fs::create_dir_all(&copies).unwrap();
            let seen = see(&tree, &path).unwrap();
            lay_out(&BTreeMap::from([(name.into(), seen.clone())]), &copies);
            let run = |folder: &std::path::Path| {
                let room = tempfile::tempdir_in(scratch.path()).unwrap();
                let mut shell = shell(command, folder);
                shell
                    .env("F", name)
                    .env("E", copies.join(name))
                    .env("T", room.path())
                    .output()
                    .unwrap()
            };
            let out = run(&mount.at(folder));
            let expected = match gives {
                TheBytes => seen.bytes().to_vec(),
                AsOnDisk => run(&copies).stdout,
            };
            let complaint = String::from_utf8_lossy(&out.stderr);
            let what = if !out.status.success() || !complaint.is_empty() {
                format!("{}: {complaint}", out.status)
            } else if expected.is_empty() {
                "nothing comes out".into()
            } else if out.stdout != expected {
                difference(&out.stdout, &expected)
            } else {
                continue;
            };
            wrong.push(format!("{tool}: {command}\n    of {path}: {what}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Promise: Tools that print text print what the mount holds.
#[test]
fn text_tools_print_what_the_mount_holds() {
    needs_fuse!();
    check(TEXT);
}

/// Promise: Tools that copy a file copy every byte.
#[test]
fn copy_tools_copy_every_byte() {
    needs_fuse!();
    check(COPIES);
}

/// Promise: Tools that archive a file archive every byte.
#[test]
fn archive_tools_store_every_byte() {
    needs_fuse!();
    check(ARCHIVES);
}

#[test]
fn comparing_and_hashing_tools_find_the_same_bytes() {
    needs_fuse!();
    check(COMPARED);
}

/// Promise: Tools that describe a file report its true size and type.
#[test]
fn describing_tools_report_true_size_and_type() {
    needs_fuse!();
    check(DESCRIBED);
}

#[test]
fn shells_read_the_true_content() {
    needs_fuse!();
    check(SHELLS);
}

#[test]
fn programs_read_the_true_content() {
    needs_fuse!();
    check(PROGRAMS);
}

#[test]
fn json_tools_read_an_index() {
    needs_fuse!();
    let indexes = ["index.json", "runs/r1/index.json", "workers/gamma/index.json"];
    check_on(JSON, |_| indexes.map(str::to_owned).to_vec());
}
