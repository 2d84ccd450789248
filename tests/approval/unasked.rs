//! Changes of what programs run by themselves: left out and named, unless they are asked for.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::cli::program::{CommandOutput, program, run, without_privileges};
use crate::support::draft::{Node, Workbench, file, folder};
use crate::support::tool::is_here;

/// The flags that let everything in.
const ALL: [&str; 2] = ["--git-dir", "--with-programs"];

/// Returns true for root, who runs everything a second time as an ordinary user.
fn users() -> &'static [bool] {
    if rustix::process::geteuid().is_root() { &[false, true] } else { &[false] }
}

/// Returns a folder that holds `node` at `path`.
fn nested(path: &str, node: Node) -> Node {
    let mut names = path.rsplit('/');
    let last = names.next().unwrap();
    names.fold(folder([(last, node)]), |below, name| folder([(name, below)]))
}

/// Returns the settings of a repository, in which git runs a program that makes `marker`.
fn settings(marker: &Path) -> Node {
    let marker = marker.display();
    file(&format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\
         \tfsmonitor = \"touch {marker}; false\"\n"
    ))
}

/// Runs `git status` in a folder, as a prompt does. Returns true if it made `marker`.
fn runs_program(folder: &Path, marker: &Path, as_user: bool) -> bool {
    let git = ["git", "status", "--short"].map(OsStr::new);
    let words = if as_user { without_privileges(&git) } else { git.to_vec() };
    let mut command = program(words[0], &words[1..]);
    command.current_dir(folder).env("HOME", "/nonexistent");
    run(command);
    let is_made = marker.exists();
    let _ = fs::remove_file(marker);
    is_made
}

fn assert_left_out(done: &CommandOutput, path: &str) {
    assert!(done.assert_success().err.contains(&format!("left out: {path}: ")), "{done:#?}");
}

/// Promise: A folder that is or becomes a repository of git is left out, unless `--git-dir` is
/// given.
#[test]
fn a_repository_that_runs_programs_is_left_out() {
    if !is_here("git") {
        return;
    }
    for &as_user in users() {
        let mut bench = Workbench::new(&folder([]));
        let marker = bench.path().join("marker");
        let parts = [
            ("HEAD", file("ref: refs/heads/main\n")),
            ("config", settings(&marker)),
            ("objects", folder([])),
            ("refs", folder([])),
            ("guide.md", file("A guide\n")),
        ];
        let new = folder([("docs", folder(parts)), ("ok", file("ok\n"))]);
        bench.worker("w1", &folder([]), &new);
        if as_user {
            bench.give_away(true);
        }
        let shown = bench.run(&["changes", "w1", "--stat"]);
        assert_left_out(&shown, "docs/config");
        let json = bench.run(&["changes", "w1", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.assert_success().out).unwrap();
        let left_out = json["left_out"].as_array().unwrap();
        assert_eq!(left_out.len(), 5, "{json}");
        assert!(left_out.iter().all(|entry| entry["reason"].as_str().unwrap().contains("git")));

        assert_left_out(&bench.run(&["apply", "w1", "--yes"]), "docs/config");
        assert_eq!(bench.tree(), folder([("docs", folder([])), ("ok", file("ok\n"))]));
        assert!(!runs_program(&bench.at("docs"), &marker, as_user));
        let named = bench.run(&["apply", "w1", "docs/config", "--yes", "--with-programs"]);
        named.assert_failure(1, &["left out: docs/config", "--git-dir"]);

        bench.run(&["apply", "w1", "--yes", "--git-dir"]).assert_success();
        assert_eq!(bench.tree(), new);
        assert!(runs_program(&bench.at("docs"), &marker, as_user), "the control runs no program");
    }
}

/// Promise: A folder that is or becomes a repository of git is left out, unless `--git-dir` is
/// given.
#[test]
fn a_repository_of_old_entries_and_new_ones_is_left_out() {
    if !is_here("git") {
        return;
    }
    let bench = Workbench::new(&folder([("docs", folder([]))]));
    let marker = bench.path().join("marker");
    let with = |parts: &[&str]| {
        let all = [
            ("HEAD", file("ref: refs/heads/main\n")),
            ("config", settings(&marker)),
            ("objects", folder([])),
            ("refs", folder([])),
        ];
        let parts = all.into_iter().filter(|(name, _)| parts.contains(name));
        let entries = parts.map(|(name, node)| (name.to_owned(), node)).collect();
        folder([("docs", Node::Folder { mode: 0o755, entries })])
    };
    // No single worker makes a repository.
    let (none, first) = (with(&[]), with(&["config", "objects", "HEAD"]));
    bench.worker("w1", &none, &first);
    bench.worker("w2", &first, &with(&["config", "objects", "HEAD", "refs"]));
    bench.run(&["apply", "w1", "--yes"]).assert_success();
    assert_eq!(bench.tree(), first);
    assert_left_out(&bench.run(&["apply", "w2", "--yes"]), "docs/refs");
    assert_eq!(bench.tree(), first);
    assert!(!runs_program(&bench.at("docs"), &marker, false));
    bench.run(&["apply", "w2", "--yes", "--git-dir"]).assert_success();
    assert!(runs_program(&bench.at("docs"), &marker, false), "the control runs no program");

    // Some file systems have one folder for these three.
    let parts = [("Docs", "HEAD"), ("dOCS", "objects"), ("docs", "refs")];
    let three = folder(parts.map(|(name, part)| (name, folder([(part, file("x"))]))));
    let other = Workbench::new(&folder([]));
    other.worker("w1", &folder([]), &three);
    assert_left_out(&other.run(&["apply", "w1", "--yes"]), "dOCS/objects");

    // It is one now, so that its settings are left out, too.
    let now = bench.tree();
    bench.worker("w3", &now, &folder([("docs", folder([]))]));
    assert_left_out(&bench.run(&["apply", "w3", "--yes"]), "docs/config");
    assert_eq!(bench.tree(), now);
}

/// Promise: Files that programs run unasked are left out and named, under every spelling of their
/// names, unless `--git-dir` or `--with-programs` is given.
#[test]
fn listed_names_are_left_out_in_every_spelling() {
    for path in [
        "sub/.GIT/config",
        "git~1/hooks/post-checkout",
        "GI7EBA~1",
        ".g\u{200c}it/config",
        ".git. /config",
        ".gitmodules",
        "sub/.gitattributes",
        ".Envrc",
        "ENVRC~1",
        ".vscode/tasks.json",
        "x.code-workspace",
        ".hus\u{212a}y/pre-commit",
        ".claude/settings.json",
        ".mcp.json",
        "sub/.cargo/config.toml",
        "rust-toolchain.toml",
        "mise/config.toml",
        ".github/hooks/a.json",
        ".config/fish/config.fish",
        ".bashrc",
        ".nvim.lua",
        ".dir-locals.el",
    ] {
        let bench = Workbench::new(&folder([]));
        bench.worker("w1", &folder([]), &nested(path, file("x\n")));
        let applied = bench.run(&["apply", "w1", "--yes"]);
        assert!(applied.assert_success().err.contains("left out: "), "{path}: {applied:#?}");
        assert!(!bench.at(path).exists(), "{path}");
        bench.run(&["apply", "w1", "--yes", ALL[0], ALL[1]]).assert_success();
        assert!(bench.at(path).exists(), "{path}");
    }
    for path in [
        "git",
        "git~x",
        "sub/.gitignore",
        ".github/workflows/ci.yml",
        "mise/other",
        ".cargo/other",
        "docs/HEAD",
        "envrc",
        "code-workspace",
    ] {
        let bench = Workbench::new(&folder([]));
        let new = nested(path, file("x\n"));
        bench.worker("w1", &folder([]), &new);
        let applied = bench.run(&["apply", "w1", "--yes"]);
        assert!(!applied.assert_success().err.contains("left out"), "{applied:#?}");
        assert_eq!(bench.tree(), new, "{path}");
    }
}

#[test]
fn changes_of_what_runs_already_are_left_out() {
    let tasks = |text: &str| folder([("tasks.json", file(text))]);
    let old = folder([
        (".envrc", file("old\n")),
        (".vscode", tasks("old\n")),
        ("mode.code-workspace", file("x\n")),
        ("tools", tasks("evil\n")),
    ]);
    let new = folder([
        (".vscode", tasks("new\n")),
        (".zed", tasks("evil\n")),
        ("mode.code-workspace", Node::File { mode: 0o755, bytes: b"x\n".into() }),
    ]);
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    let applied = bench.run(&["apply", "w1", "--yes"]);
    for path in [".envrc", ".vscode/tasks.json", ".zed", ".zed/tasks.json", "mode.code-workspace"] {
        assert_left_out(&applied, path);
    }
    let kept = folder([
        (".envrc", file("old\n")),
        (".vscode", tasks("old\n")),
        ("mode.code-workspace", file("x\n")),
    ]);
    assert_eq!(bench.tree(), kept);
    bench.run(&["apply", "w1", "--yes", "--with-programs"]).assert_success();
    assert_eq!(bench.tree(), new);
}

/// Promise: What a link of a listed name leads to is left out as the name itself.
#[test]
fn files_that_listed_links_lead_to_are_left_out() {
    let link = |target: &str| Node::Link(target.into());
    let text = |text: &str| folder([("x", file(text))]);
    let old = folder([
        // There is nothing yet at its end.
        (".envrc", link("env/./new/../main.sh")),
        (".vscode", link("way/x")),
        (".git", file("gitdir: meta\n")),
        ("way", link("tools")),
        ("env", folder([])),
        ("meta", text("old\n")),
        ("other", text("old\n")),
        ("tools", text("old\n")),
    ]);
    let mut new = old.clone();
    let Node::Folder { entries, .. } = &mut new else { unreachable!() };
    entries.insert("env".into(), folder([("main.sh", file("evil\n"))]));
    for name in ["meta", "other", "tools"] {
        entries.insert(name.into(), text("new\n"));
    }
    entries.insert("way".into(), link("other"));
    let bench = Workbench::new(&old);
    bench.worker("w1", &old, &new);
    let applied = bench.run(&["apply", "w1", "--yes"]);
    for path in ["env/main.sh", "tools/x", "way", "meta/x"] {
        assert_left_out(&applied, path);
    }
    let mut kept = old.clone();
    let Node::Folder { entries, .. } = &mut kept else { unreachable!() };
    entries.insert("other".into(), text("new\n"));
    assert_eq!(bench.tree(), kept);
    bench.run(&["apply", "w1", "--yes", ALL[0], ALL[1]]).assert_success();
    assert_eq!(bench.tree(), new);
}

#[test]
fn many_paths_are_counted_and_named_in_json() {
    let entries = (0..12).map(|n| (format!("{n}"), file("x"))).collect();
    let new = folder([(".idea", Node::Folder { mode: 0o755, entries })]);
    let bench = Workbench::new(&folder([]));
    bench.worker("w1", &folder([]), &new);
    for command in [&["changes", "w1", "--name-only"][..], &["apply", "w1", "--yes"]] {
        let done = bench.run(command);
        assert!(
            done.assert_success().err.contains("left out: 8 more paths: an editor"),
            "{done:#?}"
        );
    }
    let json = bench.run(&["changes", "w1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.assert_success().out).unwrap();
    assert_eq!(json["left_out"].as_array().unwrap().len(), 13);
    assert_eq!(json["left_out"][0]["path"], ".idea");
}

#[test]
fn links_in_a_circle_or_out_of_the_workspace_do_not_matter() {
    let bench = Workbench::new(&folder([]));
    for (name, target) in [(".envrc", "a"), ("a", "b"), ("b", "a"), (".vscode", "../elsewhere")] {
        symlink(target, bench.at(name)).unwrap();
    }
    let old = bench.tree();
    let mut new = old.clone();
    let Node::Folder { entries, .. } = &mut new else { unreachable!() };
    entries.insert("x".into(), file("x"));
    bench.worker("w1", &old, &new);
    let applied = bench.run(&["apply", "w1", "--yes"]);
    assert!(!applied.assert_success().err.contains("left out"), "{applied:#?}");
    assert_eq!(bench.tree(), new);
}
