//! Tools probe every directory for well-known names. A probe must not start a search.

use std::fs;

use crate::mount::swarm;
use crate::needs_fuse;
use crate::support::tool::{is_here, shell};
use crate::support::{Mount, some};

/// Tools, each with a command that probes the current directory.
const PROBES: &[(&str, &str)] = &[
    ("ls", "ls -laR . >/dev/null"),
    ("find", "find . -name '*.md' -newer README.md"),
    ("grep", "grep -rIl needle ."),
    ("rg", "rg needle"),
    ("rg", "rg --files --hidden"),
    ("fdfind", "fdfind md"),
    ("fdfind", "fdfind -HI md"),
    ("tree", "tree -a"),
    ("du", "du -a"),
    ("git", "git status"),
    ("git", "git log"),
    ("git", "git rev-parse --show-toplevel"),
    ("git", "git grep --no-index needle"),
    ("git", "git diff --no-index README.md /dev/null"),
    (
        "python3",
        "python3 -c 'import json, sys, os; sys.path.insert(0, \".\"); import random; os.listdir()'",
    ),
    ("python3", "python3 -m json.tool README.md"),
    ("ex", "ex -R -c 'visual' -c 'e README.md' -c q! README.md </dev/null"),
    ("less", "less README.md"),
    ("tar", "tar -cf /dev/null ."),
    ("rsync", "rsync -an ./ /nonexistent-but-dry/"),
    ("file", "file *"),
    ("bash", "for name in *; do [ -d $name ]; [ -e $name/.envrc ]; done; compgen -f ."),
    ("dash", "dash -c 'cd . && echo *'"),
    ("perl", "perl -e 'opendir D, q(.); print readdir D'"),
    ("zip", "zip -r - . >/dev/null"),
    ("cp", "cp -a . /dev/shm/$$ ; rm -rf /dev/shm/$$"),
];

/// Returns the number of queries that a log records.
fn query_count(log: &str) -> usize {
    log.lines().filter(|line| line.contains(": running a ")).count()
}

/// Promise: A tool that only probes the tree starts no search.
#[test]
fn probing_tools_start_no_search() {
    needs_fuse!();
    let store = swarm();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let wrapper = ["env", "SWARMLETFS_LOG=swarmletfs=debug"];
    let mount = Mount::by(&wrapper, &store.path(), &["--log", log.to_str().unwrap()]);
    let queries_run = || query_count(&fs::read_to_string(&log).unwrap());
    for place in [
        "",
        "grep",
        "grep.i.4k",
        "search",
        "search.4k",
        "workers/alpha/search",
        "compare",
        "compare.4k@report",
        "workers/alpha",
        "workers/alpha/grep",
        "runs/r1",
        "by/status",
    ] {
        for (tool, command) in some(PROBES.iter().filter(|(tool, _)| is_here(tool))) {
            // The result of the tool does not matter.
            let _ = shell(command, &mount.at(place)).output().unwrap();
            assert_eq!(
                queries_run(),
                0,
                "{tool} started a search in {place:?}: {command}\n{}",
                last_lines(&fs::read_to_string(&log).unwrap())
            );
        }
    }
    // Control: reading a query starts a search.
    for (before, query) in
        ["grep/needle", "search/needle", "compare/alpha..beta"].into_iter().enumerate()
    {
        mount.read(query);
        assert_eq!(
            queries_run(),
            before + 1,
            "{query}: {}",
            last_lines(&fs::read_to_string(&log).unwrap())
        );
    }
}

/// Returns the last five lines of a log, the latest first.
fn last_lines(log: &str) -> String {
    log.lines().rev().take(5).collect::<Vec<_>>().join("\n")
}
