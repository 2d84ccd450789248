//! Ordinary tools on generated files: each must give of them exactly what it gives of the same bytes on disk.

use std::fs;
use std::process::Command;

use super::swarm;
use crate::needs_fuse;
use crate::support::Mount;

/// A tool and a command that writes what it makes of the file `$F` to standard output; `$T` is an empty folder.
const TOOLS: [(&str, &str); 75] = [
    ("cat", r#"cat "$F""#),
    ("cat", r#"cat <"$F""#),
    ("wc", r#"wc -c <"$F""#),
    ("wc", r#"wc "$F" | awk '{print $1, $2, $3}'"#),
    ("stat", r#"stat -c %s "$F""#),
    ("head", r#"head -n 7 "$F""#),
    ("head", r#"head -c 1000000 "$F""#),
    ("head", r#"head -n -3 "$F""#),
    ("tail", r#"tail -n 5 "$F""#),
    ("tail", r#"tail -n +1 "$F""#),
    ("tail", r#"tail -c 100 "$F""#),
    ("tail", r#"tail -c 1000000 "$F""#),
    ("grep", r#"grep -n '' "$F""#),
    ("grep", r#"grep -c . "$F""#),
    ("rg", r#"rg --no-config -N '^' "$F""#),
    ("rg", r#"rg --no-config --mmap -N '^' "$F""#),
    ("rg", r#"rg --no-config --no-mmap -c . "$F""#),
    ("less", r#"less "$F" </dev/null"#),
    ("cp", r#"cp "$F" "$T/x" && cat "$T/x""#),
    ("cp", r#"cp -a "$F" "$T/x" && cat "$T/x""#),
    ("cp", r#"cp --reflink=auto --sparse=always "$F" "$T/x" && cat "$T/x""#),
    ("install", r#"install -m 600 "$F" "$T/x" && cat "$T/x""#),
    ("cmp", r#"cmp "$F" "$E" && echo same"#),
    ("diff", r#"diff "$F" "$E" && echo same"#),
    ("rsync", r#"rsync -a "$F" "$T/x" && cat "$T/x""#),
    ("rsync", r#"rsync -a --checksum --inplace "$F" "$T/x" && cat "$T/x""#),
    ("tar", r#"tar -cf "$T/t" -C "$(dirname "$F")" "$(basename "$F")" && tar -xOf "$T/t""#),
    (
        "zip",
        r#"zip -qj "$T/z.zip" "$F" && python3 -c 'import sys,zipfile; z=zipfile.ZipFile(sys.argv[1]); sys.stdout.buffer.write(z.read(z.namelist()[0]))' "$T/z.zip""#,
    ),
    ("unzip", r#"zip -qj "$T/z.zip" "$F" && unzip -p "$T/z.zip""#),
    ("dd", r#"dd if="$F" bs=1 status=none"#),
    ("dd", r#"dd if="$F" bs=100 skip=1 status=none"#),
    ("dd", r#"dd if="$F" bs=1M iflag=fullblock status=none"#),
    ("sort", r#"sort "$F""#),
    ("uniq", r#"uniq -c "$F""#),
    ("awk", r#"awk '{n += length($0); print NR ": " $0} END {print n}' "$F""#),
    ("sed", r#"sed -n 'p' "$F""#),
    ("sed", r#"sed -n '$p' "$F""#),
    ("tac", r#"tac "$F""#),
    ("rev", r#"rev "$F""#),
    ("nl", r#"nl -ba "$F""#),
    ("cut", r#"cut -c 1-20 "$F""#),
    ("fold", r#"fold -w 40 "$F""#),
    ("od", r#"od -An -tx1 "$F""#),
    ("hexdump", r#"hexdump -C "$F""#),
    ("md5sum", r#"md5sum "$F" | cut -d ' ' -f 1"#),
    ("sha256sum", r#"sha256sum "$F" | cut -d ' ' -f 1"#),
    ("cksum", r#"cksum <"$F""#),
    ("git", r#"git hash-object --no-filters "$F""#),
    ("jq", r#"jq -R . "$F""#),
    ("jq", r#"jq -Rs length "$F""#),
    ("python3", r#"python3 -c 'import sys; sys.stdout.buffer.write(open(sys.argv[1],"rb").read())' "$F""#),
    ("python3", r#"python3 -c 'import sys; sys.stdout.buffer.writelines(open(sys.argv[1],"rb"))' "$F""#),
    (
        "python3",
        r#"python3 -c 'import sys,mmap; f=open(sys.argv[1],"rb"); m=mmap.mmap(f.fileno(),0,access=mmap.ACCESS_READ); sys.stdout.buffer.write(m[:])' "$F""#,
    ),
    (
        "python3",
        r#"python3 -c 'import sys,os; f=open(sys.argv[1],"rb"); n=f.seek(0,os.SEEK_END); f.seek(-50,os.SEEK_END); sys.stdout.buffer.write(b"%d " % n + f.read())' "$F""#,
    ),
    (
        "python3",
        r#"python3 -c 'import sys,shutil; shutil.copyfile(sys.argv[1], sys.argv[2])' "$F" "$T/x" && cat "$T/x""#,
    ),
    (
        "python3",
        r#"python3 -c 'import sys,os; a=os.open(sys.argv[1],0); n=os.fstat(a).st_size; os.sendfile(1,a,0,n)' "$F" | cat"#,
    ),
    (
        "python3",
        r#"python3 -c 'import sys,os; a=os.open(sys.argv[1],0); b=os.open(sys.argv[2],os.O_RDWR|os.O_CREAT); n=os.fstat(a).st_size; os.copy_file_range(a,b,n)' "$F" "$T/x" 2>/dev/null || cp "$F" "$T/x"; cat "$T/x""#,
    ),
    (
        "python3",
        r#"python3 -c 'import sys,os; a=os.open(sys.argv[1],0); print(os.lseek(a,0,os.SEEK_DATA), os.lseek(a,0,os.SEEK_HOLE))' "$F""#,
    ),
    ("curl", r#"curl -sS "file://$F""#),
    ("gzip", r#"gzip -c "$F" | gzip -dc"#),
    ("bzip2", r#"bzip2 -c "$F" | bzip2 -dc"#),
    ("xz", r#"xz -c "$F" | xz -dc"#),
    ("test", r#"test -s "$F" && test -r "$F" && test ! -x "$F" && test -f "$F" && echo yes"#),
    ("split", r#"split -b 1000 "$F" "$T/part." && cat "$T"/part.*"#),
    ("split", r#"split -n 3 "$F" "$T/part." && cat "$T"/part.*"#),
    ("csplit", r#"csplit -s -f "$T/part." "$F" 3 && cat "$T"/part.*"#),
    ("base64", r#"base64 "$F""#),
    ("node", r#"node -e 'process.stdout.write(require("fs").readFileSync(process.argv[1]))' "$F""#),
    ("node", r#"node -e 'require("fs").createReadStream(process.argv[1]).pipe(process.stdout)' "$F""#),
    ("perl", r#"perl -ne 'print "$.:$_"' "$F""#),
    ("tee", r#"tee "$T/x" <"$F" >/dev/null && cat "$T/x""#),
    ("xargs", r#"xargs -d '\n' -n 1 printf '%s\n' <"$F""#),
    ("bash", r#"mapfile -t lines <"$F"; printf '%s\n' "${#lines[@]}" "${lines[@]}""#),
    ("bash", r#"printf '%s' "$(<"$F")""#),
    ("paste", r#"paste "$F" "$F""#),
];
/// At least so many different tools must be there, or the test proves little.
const TOOLS_MIN: usize = 10;

/// Runs a command on the mounted files and on their copies, and compares.
const SCRIPT: &str = r#"
set -euo pipefail
unset LESSOPEN
PATH=/usr/bin:/bin:$PATH
for path in index.json workers/alpha/summary workers/alpha/evidence.txt; do
    name=$(basename "$path")
    E="$COPIES/$name"
    for F in "$E" "$M/$path"; do
        rm -rf "$T" && mkdir "$T"
        { COMMAND
        } >"$OUT.$([[ $F == "$E" ]] && echo copy || echo mounted)"
    done
    [[ -s $OUT.copy ]] || { echo "$name: nothing comes out" >&2; exit 1; }
    cmp "$OUT.copy" "$OUT.mounted" >&2 || { echo "$name: differs" >&2; exit 1; }
done
"#;

#[test]
fn every_tool_reads_of_a_generated_file_what_cat_reads() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let (mut ran, mut missing, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    let scratch = tempfile::tempdir().unwrap();
    let copies = scratch.path().join("copies");
    fs::create_dir(&copies).unwrap();
    for (name, path) in [
        ("index.json", "index.json"),
        ("summary", "workers/alpha/summary"),
        ("evidence.txt", "workers/alpha/evidence.txt"),
    ] {
        fs::write(copies.join(name), mount.read(path)).unwrap();
    }
    for (tool, command) in TOOLS {
        let there = Command::new("bash").args(["-c", "command -v -- \"$0\"", tool]).output().unwrap();
        if !there.status.success() {
            missing.push(tool);
            continue;
        }
        let out = Command::new("bash")
            .args(["-c", &SCRIPT.replace("COMMAND", command)])
            .env("M", mount.path())
            .env("COPIES", &copies)
            .env("T", scratch.path().join("t"))
            .env("OUT", scratch.path().join("out"))
            .env("LC_ALL", "C.UTF-8")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        ran.push(tool);
        if !out.status.success() {
            wrong.push(format!("{command}: {}", String::from_utf8_lossy(&out.stderr)));
        }
    }
    for list in [&mut ran, &mut missing] {
        list.sort_unstable();
        list.dedup();
    }
    for tool in &missing {
        eprintln!("SKIP {tool}: not installed");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(ran.len() >= TOOLS_MIN, "only {ran:?} are here");
}

#[test]
fn tools_that_walk_the_tree_read_all_of_it() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let out = mount.shell(
        r#"set -euo pipefail
        T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
        cp -a "$M" "$T/cp"
        diff -r --no-dereference "$M" "$T/cp"
        tar -C "$M" -cf - . | { mkdir "$T/tar" && tar -C "$T/tar" -xf -; }
        diff -r --no-dereference "$T/cp" "$T/tar"
        if command -v rsync >/dev/null; then
            rsync -a "$M/" "$T/rsync/" && diff -r --no-dereference "$T/cp" "$T/rsync"
        fi
        (cd "$M" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$T/sums"
        (cd "$T/cp" && sha256sum --quiet -c "$T/sums")
        find "$T/cp" -name 'evidence.*' | wc -l"#,
    );
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), "6");
}

#[test]
fn files_are_polled_and_locked_like_any_other() {
    needs_fuse!();
    let store = swarm();
    let mount = Mount::new(&store.path());
    let script = r#"
import fcntl, select, sys
for path in sys.argv[1:]:
    f = open(path, "rb")
    poll = select.poll()
    poll.register(f, select.POLLIN)
    assert poll.poll(0) == [(f.fileno(), select.POLLIN)], path
    assert select.select([f], [], [], 0)[0] == [f], path
    fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
"#;
    let out = Command::new("python3")
        .args(["-c", script])
        .args(["index.json", "workers/alpha/summary", "workers/alpha/result.txt"].map(|path| mount.at(path)))
        .output();
    let Ok(out) = out else { return eprintln!("SKIP poll and locks: python3 is not installed") };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
