//! Rules for the source tree: layers, file sizes, headers, and a test for every promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

/// The layers from the bottom up. A module may use only the modules before it.
const LAYERS: [&str; 33] = [
    "split",
    "unicode",
    "name",
    "error",
    "digest",
    "deadline",
    "parallel",
    "path_bytes",
    "watchdog",
    "cache",
    "model",
    "store",
    "text",
    "failure_signs",
    "catalog",
    "view",
    "search",
    "analysis",
    "route",
    "audit",
    "write",
    "read_log",
    "draft",
    "approval",
    "retention",
    "query",
    "output",
    "render",
    "tree",
    "fuse",
    "mcp",
    "cli",
    "swarm",
];
/// Uses of a higher layer that are allowed.
const ALLOWED: [(&str, &str); 1] = [("name", "error")];
/// Uses of a lower layer that are forbidden.
const FORBIDDEN: [(&str, &str); 28] = [
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
    ("query", "write"),
    ("output", "write"),
    ("render", "write"),
    ("tree", "write"),
    ("fuse", "write"),
    ("query", "audit"),
    ("output", "audit"),
    ("render", "audit"),
    ("tree", "audit"),
    ("fuse", "audit"),
    ("mcp", "fuse"),
    ("mcp", "catalog"),
    ("mcp", "view"),
    ("mcp", "analysis::analyzer"),
    ("mcp", "store"),
];
/// The crates beneath the program, from the bottom up, each with the crates that it may use.
const CRATES: [(&str, &[&str]); 13] = [
    ("base", &[]),
    ("meaning", &[]),
    ("table", &["base"]),
    ("sandbox", &["base"]),
    ("trace", &["base"]),
    ("tree", &["base", "meaning", "table", "trace"]),
    ("record", &["base", "trace", "tree"]),
    ("workspace", &["base", "trace", "record"]),
    ("fuse", &["base", "record", "tree"]),
    ("page", &["base", "tree"]),
    ("prose", &["base", "record", "tree"]),
    ("objects", &["base", "table"]),
    ("mcp", &["base", "page", "record", "trace", "tree", "workspace"]),
];
/// Maximum length of a file without its tests, in lines. A longer file is likely to hold two ideas.
const LINES_MAX: usize = 800;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the directories of Rust files of the program and its crates.
fn crate_roots() -> Vec<PathBuf> {
    let crates = CRATES.iter().map(|(name, _)| root().join("crates").join(name).join("src"));
    [root().join("src")].into_iter().chain(crates).collect()
}

/// Returns every Rust file of the program and its crates.
fn program_sources() -> Vec<PathBuf> {
    crate_roots().iter().flat_map(|dir| sources(dir)).collect()
}

/// Returns the path of a file within its crate.
fn path_in_crate(path: &Path) -> PathBuf {
    let found =
        crate_roots().into_iter().find_map(|dir| Some(path.strip_prefix(dir).ok()?.to_path_buf()));
    found.unwrap_or_else(|| panic!("{path:?} is in no crate"))
}

/// Returns every Rust file under `dir`.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns the text of a file up to its unit tests. A file tests.rs has only these.
fn without_tests(path: &Path) -> String {
    if path.ends_with("tests.rs") {
        return String::new();
    }
    let text = fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]").next().unwrap().to_owned()
}

/// Returns the top-level module of a file, or `None` for lib.rs and main.rs.
fn layer(path: &Path) -> Option<String> {
    let relative = path_in_crate(path);
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    let name = first.trim_end_matches(".rs").to_owned();
    (!matches!(name.as_str(), "lib" | "main")).then_some(name)
}

#[test]
fn modules_use_only_lower_layers() {
    let other_crate = Regex::new(r"\bswarmletfs_[a-z]+::").unwrap();
    let level_of = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    for path in program_sources() {
        let Some(module) = layer(&path) else { continue };
        // Cargo keeps the crates apart; those without layers are of one piece.
        let Some(level) = level_of(&module) else {
            assert!(!path.starts_with(root().join("src")), "{path:?}: {module} is in no layer");
            continue;
        };
        for (index, line) in without_tests(&path).lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            let number = index + 1;
            for used in other_crate.replace_all(line, "crate::").split("crate::").skip(1) {
                let end =
                    used.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(used.len());
                let name = &used[..end];
                let Some(used_level) = level_of(name) else { continue };
                let allowed = used_level <= level || ALLOWED.contains(&(module.as_str(), name));
                assert!(
                    allowed,
                    "{path:?}:{number}: {module} uses {name}, which is in a higher layer"
                );
                let forbidden =
                    FORBIDDEN.iter().any(|(user, item)| *user == module && used.starts_with(item));
                assert!(!forbidden, "{path:?}:{number}: {module} must not use {name}");
            }
        }
    }
}

/// Readers of traces are quick to build, since they need nothing that serves or asks.
#[test]
fn trace_crate_has_no_server_runtime_git_or_command_line() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package", "swarmletfs-trace", "--edges", "normal"])
        .args(["--prefix", "none"])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.contains("\nswarmletfs-base "), "{tree}");
    for heavy in ["tokio", "gix", "fuser", "clap"] {
        assert!(!tree.lines().any(|line| line.starts_with(heavy)), "{heavy} in {tree}");
    }
}

/// The module of a source file, from the crate's root; `main.rs` and `lib.rs` are the root.
fn module(path: &Path) -> Vec<String> {
    let inner = path_in_crate(path).with_extension("");
    let names: Vec<String> = inner.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if matches!(names.as_slice(), [only] if only == "main" || only == "lib") {
        Vec::new()
    } else {
        names
    }
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
    let code: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in ["crate::", "super::", "self::"].iter().flat_map(|word| code.match_indices(word))
    {
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

/// The arrows between the modules of each directory of the crate at `dir`. An arrow from inside a
/// module counts as the module's.
fn sibling_arrows(dir: &Path) -> BTreeMap<Vec<String>, BTreeSet<(String, String)>> {
    let paths = sources(dir);
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
                arrows
                    .entry(here[..shared].to_vec())
                    .or_default()
                    .insert((from.clone(), to.clone()));
            }
        }
    }
    arrows
}

#[test]
fn crates_use_only_lower_crates() {
    let known: BTreeSet<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    let found: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(found.iter().map(String::as_str).eq(known), "{found:?}");
    let used = Regex::new(r"(?m)^swarmletfs(-(\w+))?\b").unwrap();
    for (name, allowed) in CRATES {
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        for found in used.captures_iter(&manifest) {
            let lower = found.get(2).map_or("the program", |name| name.as_str());
            assert!(allowed.contains(&lower), "crates/{name} must not use {lower}");
        }
    }
}

#[test]
fn modules_of_a_folder_form_no_cycle() {
    let arrows = || crate_roots().into_iter().flat_map(|dir| sibling_arrows(&dir));
    assert!(arrows().count() > 10, "only {} folders were found", arrows().count());
    for (folder, mut left) in arrows() {
        // LAYERS states the order of the topmost modules.
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
        assert!(left.is_empty(), "in {}, modules in or above a cycle: {left:?}", folder.join("/"));
    }
}

#[test]
fn no_file_is_too_long() {
    for path in ["src", "crates", "benches", "examples", "python/src"]
        .into_iter()
        .flat_map(|dir| sources(&root().join(dir)))
    {
        let lines = without_tests(&path).lines().count();
        assert!(
            lines <= LINES_MAX,
            "{path:?} has {lines} lines without its tests; the limit is {LINES_MAX}"
        );
    }
}

/// A wrong index must fail where it is used, not continue as zero or as an empty slice.
#[test]
fn no_index_out_of_range_becomes_a_default() {
    let of_slice = Regex::new(r"\bget(_mut)?\([^)]*\.\.[^)]*\)\s*\.unwrap_or_default\(\)").unwrap();
    let of_item = Regex::new(r"\.copied\(\)\s*\.unwrap_or(_default)?\((0|0\.0)?\)").unwrap();
    for path in program_sources() {
        let text = without_tests(&path);
        let found = [&of_slice, &of_item].into_iter().find_map(|pattern| pattern.find(&text));
        assert!(found.is_none(), "{path:?}: {found:?}");
    }
}

/// rustfmt wraps code at this width but leaves comments alone.
#[test]
fn comments_fit_100_columns() {
    for path in ["src", "crates", "tests", "benches", "examples", "fuzz/fuzz_targets", "python/src"]
        .into_iter()
        .flat_map(|dir| sources(&root().join(dir)))
    {
        for (at, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            assert!(!is_comment || line.chars().count() <= 100, "{path:?}:{}: {line}", at + 1);
        }
    }
}

#[test]
fn every_source_begins_with_a_module_comment() {
    for path in ["src", "crates", "tests", "benches", "examples", "python/src"]
        .into_iter()
        .flat_map(|dir| sources(&root().join(dir)))
    {
        assert!(
            fs::read_to_string(&path).unwrap().starts_with("//!"),
            "{path:?} must begin with //!"
        );
    }
}

#[test]
fn scripts_have_a_header_and_stop_at_the_first_error() {
    for entry in fs::read_dir(root().join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        // Directories hold the modules of a script.
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let (first, second) = (text.lines().next().unwrap(), text.lines().nth(1).unwrap());
        match first {
            "#!/usr/bin/env bash" => {
                assert!(second.starts_with("# "), "{path:?} needs a comment on its second line");
                assert!(
                    text.contains("\nset -euo pipefail\n"),
                    "{path:?} does not stop at the first error"
                );
            }
            // Python stops at an uncaught exception.
            "#!/usr/bin/env python3" => {
                assert!(
                    second.starts_with("\"\"\""),
                    "{path:?} needs a docstring on its second line"
                )
            }
            other => panic!("{path:?} has an unknown first line: {other}"),
        }
        assert!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o111 == 0o111,
            "{path:?} is not executable"
        );
    }
}

#[test]
fn every_test_file_is_a_module() {
    for path in sources(&root().join("tests")).iter().filter(|path| !path.ends_with("main.rs")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let dir = path.parent().unwrap();
        let parent = if dir == root().join("tests") {
            dir.join("main.rs")
        } else {
            dir.with_extension("rs")
        };
        let text =
            fs::read_to_string(&parent).unwrap_or_else(|_| panic!("{path:?} has no parent module"));
        assert!(text.contains(&format!("mod {name};")), "{parent:?} does not declare {path:?}");
    }
}

#[test]
fn only_four_modules_below_cli_touch_a_file_system() {
    for path in program_sources() {
        let module = layer(&path).unwrap_or_default();
        if matches!(module.as_str(), "store" | "cli" | "")
            || ["cache/disk.rs", "write/dir.rs", "objects/src/profile.rs"]
                .iter()
                .any(|file| path.ends_with(file))
        {
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
    for path in program_sources() {
        for (at, line) in without_tests(&path).lines().enumerate() {
            let hashes_debug = line.contains(".update(format!(") && line.contains(":?}");
            assert!(
                !hashes_debug,
                "{path:?}:{}: Debug output may change or hide a field; derive Hash",
                at + 1
            );
        }
    }
}

#[test]
fn random_tests_take_the_seed_of_the_run() {
    let fixed =
        Regex::new(r"(with_seed|Dice::new)\([0-9]|ProptestConfig::(default|with_cases)").unwrap();
    for path in program_sources().into_iter().chain(sources(&root().join("tests"))) {
        let text = fs::read_to_string(&path).unwrap();
        let found = fixed.find(&text).map(|found| found.as_str());
        assert_eq!(found, None, "{path:?}: use tests/support/scale.rs");
        let has_cases = text.contains("#![proptest_config(") || !text.contains("proptest! {");
        assert!(has_cases || path.ends_with("tidy.rs"), "{path:?}: use cases of tests/support");
    }
}

/// Returns the test name that equals `sentence`.
fn test_name(sentence: &str) -> String {
    let words = sentence.replace('\'', "").to_lowercase();
    words
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join("_")
}

/// Returns the sentence that the doc comment at the end of `before` quotes with `Promise:`.
///
/// The quote ends at an empty line of the comment.
fn quoted_promise(before: &str) -> Option<String> {
    let mut comment: Vec<&str> = Vec::new();
    for line in before.lines().rev().map(str::trim_start).skip_while(|line| line.is_empty()) {
        match line.strip_prefix("///") {
            Some(words) => comment.push(words.trim()),
            None if line.starts_with("#[") => {}
            None => break,
        }
    }
    comment.reverse();
    let start = comment.iter().position(|line| line.starts_with("Promise: "))?;
    let quote: Vec<&str> =
        comment[start..].iter().copied().take_while(|line| !line.is_empty()).collect();
    Some(quote.join(" ")["Promise: ".len()..].to_owned())
}

/// A test covers a promise if its doc comment quotes the bullet or if its name equals the bullet.
#[test]
fn every_promise_has_a_test() {
    let text = fs::read_to_string(root().join("docs/SEMANTICS.md")).unwrap();
    let promises: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert!(promises.len() > 50, "SEMANTICS.md has only {} promises", promises.len());
    let distinct: BTreeSet<&str> = promises.iter().copied().collect();
    assert_eq!(distinct.len(), promises.len(), "SEMANTICS.md states a promise twice");

    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut quotes: BTreeSet<String> = BTreeSet::new();
    for path in program_sources().into_iter().chain(sources(&root().join("tests"))) {
        let text = fs::read_to_string(&path).unwrap();
        let parts: Vec<&str> = text.split("#[test]").collect();
        for pair in parts.windows(2) {
            let [before, after] = pair else { unreachable!("windows of two") };
            let Some((attributes, signature)) = after.split_once("fn ") else { continue };
            let Some((name, _)) = signature.split_once('(') else { continue };
            let quote = quoted_promise(before);
            if let Some(quote) = &quote {
                assert!(
                    distinct.contains(quote.as_str()),
                    "{path:?}: {name} quotes no promise: {quote}"
                );
            }
            if !attributes.contains("#[ignore") || attributes.contains("only in scripts/check") {
                names.insert(name.to_owned());
                quotes.extend(quote);
            }
        }
    }
    let untested: Vec<&str> = promises
        .into_iter()
        .filter(|promise| !quotes.contains(*promise) && !names.contains(&test_name(promise)))
        .collect();
    assert!(untested.is_empty(), "these promises have no test: {untested:#?}");
}
