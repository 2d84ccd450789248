//! The layout of the sources, so that the drawing in lib.rs cannot rot.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The layers from the ground up; a module may only use what stands before it.
const LAYERS: [&str; 23] = [
    "unicode", "name", "error", "digest", "parallel", "watchdog", "cache", "model", "store", "trace", "catalog",
    "view", "search", "text", "analysis", "route", "query", "output", "render", "tree", "fuse", "mcp", "cli",
];
/// Pairs on one level, or arrows that are allowed against the order.
const ALLOWED: [(&str, &str); 1] = [("name", "error")];
/// Pairs that must not know each other though their order would allow it.
const FORBIDDEN: [(&str, &str); 18] = [
    ("model", "store"),
    ("view", "trace"),
    ("text", "view"),
    ("route", "analysis::analyzer"),
    ("output", "analysis::analyzer"),
    ("tree", "catalog::Catalog"),
    ("fuse", "catalog"),
    ("fuse", "view"),
    ("fuse", "analysis"),
    ("fuse", "query"),
    ("fuse", "output"),
    ("fuse", "render"),
    ("fuse", "store"),
    ("mcp", "fuse"),
    ("mcp", "catalog"),
    ("mcp", "view"),
    ("mcp", "analysis::analyzer"),
    ("mcp", "store"),
];
/// The longest file without its tests, in lines. A longer one is likely to hold two ideas.
const LINES_MAX: usize = 800;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn without_tests(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]").next().unwrap().to_owned()
}

fn layer(path: &Path) -> Option<String> {
    let inner = path.strip_prefix(root().join("src")).unwrap();
    let first = inner.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    let name = first.trim_end_matches(".rs").to_owned();
    (!matches!(name.as_str(), "lib" | "main")).then_some(name)
}

#[test]
fn arrows_go_only_downward() {
    let place = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    for path in sources(&root().join("src")) {
        let Some(here) = layer(&path) else { continue };
        let own = place(&here).unwrap_or_else(|| panic!("{here} is in no layer: {path:?}"));
        for (at, line) in without_tests(&path).lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for used in line.split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(used.len());
                let (name, place_at) = (&used[..end], place(&used[..end]));
                let Some(there) = place_at else { continue };
                let allowed = there <= own || ALLOWED.contains(&(here.as_str(), name));
                assert!(allowed, "{path:?}:{}: {here} uses {name}, which stands above it", at + 1);
                let forbidden = FORBIDDEN.iter().any(|(a, b)| *a == here && used.starts_with(b));
                assert!(!forbidden, "{path:?}:{}: {here} must not know {name}", at + 1);
            }
        }
    }
}

/// The module of a source file, from the crate's root; `main.rs` and `lib.rs` are the root.
fn module(path: &Path) -> Vec<String> {
    let inner = path.strip_prefix(root().join("src")).unwrap().with_extension("");
    let names: Vec<String> = inner.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if matches!(names.as_slice(), [only] if only == "main" || only == "lib") { Vec::new() } else { names }
}

/// Expands a use tree such as `a::{b, c::{d, e}}` into its paths.
fn expand_use(tree: &str, prefix: &str, found: &mut Vec<String>) {
    let Some((before, group)) = tree.trim().split_once('{') else {
        found.push(format!("{prefix}{}", tree.trim()));
        return;
    };
    let (prefix, mut depth) = (format!("{prefix}{before}"), 0);
    let parts = group.strip_suffix('}').unwrap().split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.for_each(|part| expand_use(part, &prefix, found));
}

/// The paths in a source text that begin with `crate`, `super` or `self`.
fn used_paths(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in ["crate::", "super::", "self::"].iter().flat_map(|word| code.match_indices(word)) {
        let before = code[..at].chars().next_back().unwrap_or(' ');
        if before.is_alphanumeric() || matches!(before, '_' | ':') {
            continue;
        }
        let is_use = code[..at].trim_end().ends_with("use");
        let is_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
        let rest = &code[at..];
        let end = if is_use { rest.find(';') } else { rest.find(|c| !is_path(c)) };
        expand_use(&rest[..end.unwrap_or(rest.len())], "", &mut found);
    }
    found
}

/// The arrows between the modules of each folder. An arrow from inside a module counts as the
/// module's.
fn sibling_arrows() -> BTreeMap<Vec<String>, BTreeSet<(String, String)>> {
    let paths = sources(&root().join("src"));
    let modules: BTreeSet<Vec<String>> = paths.iter().map(|path| module(path)).collect();
    let mut arrows: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for path in &paths {
        let here = module(path);
        for used in used_paths(&without_tests(path)) {
            let mut there = here.clone();
            for name in used.split_whitespace().next().unwrap_or_default().split("::") {
                match name {
                    "crate" => there.clear(),
                    "super" => there.truncate(there.len() - 1),
                    "self" => {}
                    name => there.push(name.to_owned()),
                }
            }
            let shared = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (here.get(shared), there.get(shared)) else { continue };
            if modules.contains(&there[..=shared]) {
                arrows.entry(here[..shared].to_vec()).or_default().insert((from.clone(), to.clone()));
            }
        }
    }
    arrows
}

#[test]
fn modules_of_a_folder_form_no_cycle() {
    let arrows = sibling_arrows();
    assert!(arrows.len() > 10, "only {} folders were found", arrows.len());
    for (folder, mut left) in arrows {
        // The order of the folder `src` is that of the layers.
        if folder.is_empty() {
            continue;
        }
        // Removes the modules that use no other, until none is left or all lie in or above a cycle.
        loop {
            let users: BTreeSet<String> = left.iter().map(|(from, _)| from.clone()).collect();
            let before = left.len();
            left.retain(|(_, to)| users.contains(to));
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "in src/{}, modules in or above a cycle: {left:?}", folder.join("/"));
    }
}

#[test]
fn no_file_holds_two_ideas() {
    for path in ["src", "benches", "examples"].into_iter().flat_map(|folder| sources(&root().join(folder))) {
        let lines = without_tests(&path).lines().count();
        assert!(lines <= LINES_MAX, "{path:?} has {lines} lines without its tests");
    }
}

/// A wrong index must fail where it is used, not continue as zero or as an empty slice.
#[test]
fn no_index_out_of_range_becomes_a_default() {
    let of_slice = Regex::new(r"\bget(_mut)?\([^)]*\.\.[^)]*\)\s*\.unwrap_or_default\(\)").unwrap();
    let of_item = Regex::new(r"\.copied\(\)\s*\.unwrap_or(_default)?\((0|0\.0)?\)").unwrap();
    for path in sources(&root().join("src")) {
        let text = without_tests(&path);
        let found = [&of_slice, &of_item].into_iter().find_map(|pattern| pattern.find(&text));
        assert!(found.is_none(), "{path:?}: {found:?}");
    }
}

#[test]
fn every_source_says_what_it_is() {
    for path in ["src", "tests", "benches", "examples"].into_iter().flat_map(|folder| sources(&root().join(folder))) {
        assert!(fs::read_to_string(&path).unwrap().starts_with("//!"), "{path:?} does not begin with //!");
    }
}

#[test]
fn every_script_says_what_it_is_and_ends_at_the_first_error() {
    for entry in fs::read_dir(root().join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        // The modules of a script.
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let (first, second) = (text.lines().next().unwrap(), text.lines().nth(1).unwrap());
        match first {
            "#!/usr/bin/env bash" => {
                assert!(second.starts_with("# "), "{path:?} does not say what it is");
                assert!(text.contains("\nset -euo pipefail\n"), "{path:?} goes on after an error");
            }
            // In Python an error ends it anyway.
            "#!/usr/bin/env python3" => assert!(second.starts_with("\"\"\""), "{path:?} does not say what it is"),
            other => panic!("{path:?} begins with {other}"),
        }
        assert!(fs::metadata(&path).unwrap().permissions().mode() & 0o111 == 0o111, "{path:?} cannot be run");
    }
}

#[test]
fn no_test_file_is_forgotten() {
    let files: BTreeSet<PathBuf> = sources(&root().join("tests")).into_iter().collect();
    for path in files.iter().filter(|path| !path.ends_with("main.rs")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let folder = path.parent().unwrap();
        let parent = if folder == root().join("tests") { folder.join("main.rs") } else { folder.with_extension("rs") };
        let text = fs::read_to_string(&parent).unwrap_or_else(|_| panic!("{path:?} has no parent module"));
        assert!(text.contains(&format!("mod {name};")), "{path:?} is not in {parent:?}");
    }
}

#[test]
fn only_the_disk_store_and_the_disk_cache_touch_a_file_system() {
    for path in sources(&root().join("src")) {
        let here = layer(&path).unwrap_or_default();
        if matches!(here.as_str(), "store" | "cli" | "") || path.ends_with("cache/disk.rs") {
            continue;
        }
        let text = without_tests(&path);
        for forbidden in ["std::fs", "rustix::fs::open", "File::open", "canonicalize"] {
            assert!(!text.contains(forbidden), "{path:?} uses {forbidden}");
        }
    }
}

#[test]
fn no_key_hashes_debug_output() {
    for path in sources(&root().join("src")) {
        // The format of the disk cache includes this key.
        if path.ends_with("catalog/scan.rs") {
            continue;
        }
        for (at, line) in without_tests(&path).lines().enumerate() {
            let hashes_debug = line.contains(".update(format!(") && line.contains(":?}");
            assert!(!hashes_debug, "{path:?}:{}: Debug output may change or hide a field; derive Hash", at + 1);
        }
    }
}

/// The name of the test that stands for a sentence.
fn test_name(sentence: &str) -> String {
    let words = sentence.replace('\'', "").to_lowercase();
    words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
}

#[test]
fn every_promise_has_a_test_named_after_it() {
    // By name, since two may have one, as of grep and of search.
    let mut tests: BTreeMap<String, usize> = BTreeMap::new();
    for path in sources(&root().join("src")).into_iter().chain(sources(&root().join("tests"))) {
        let text = fs::read_to_string(&path).unwrap();
        for found in text.split("#[test]").skip(1) {
            let Some(name) = found.split("fn ").nth(1).and_then(|rest| rest.split('(').next()) else { continue };
            let is_run = !found.split("fn ").next().unwrap().contains("#[ignore");
            *tests.entry(name.to_owned()).or_default() += usize::from(is_run);
        }
    }
    let text = fs::read_to_string(root().join("docs/SEMANTICS.md")).unwrap();
    let promises: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert!(promises.len() > 50, "only {} promises were found", promises.len());
    let mut is_tested = |promise: &&&str| match tests.get_mut(&test_name(promise)) {
        Some(left @ 1..) => {
            *left -= 1;
            true
        }
        _ => false,
    };
    let untested: Vec<&&str> = promises.iter().filter(|promise| !is_tested(promise)).collect();
    assert!(untested.is_empty(), "promises without a test of their name: {untested:#?}");
}
