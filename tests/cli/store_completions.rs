//! Completions of workers, runs and paths from a store, in real shells.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::program::{MountSandbox, mount, program, run, small_store, swarmletfs, umount};
use crate::needs_fuse;
use crate::support::TestStore;
use crate::support::mount::PROGRAM;
use crate::support::terminal::Terminal;
use crate::support::tool::is_here;

/// Ids that shells would expand, run or show wrongly, each beginning with another letter.
const HOSTILE: [&str; 6] =
    ["a$(touch X)", "b`touch X`", "c d'e\"f", "g;touch X;", "h*?[i]!j", "k\\l#m&n|o<p>(q){r}~"];

/// A store with hostile names, and a folder with the scripts.
struct Completions {
    store: TestStore,
    sandbox: MountSandbox,
}

impl Completions {
    fn new() -> Completions {
        let (store, sandbox) = (TestStore::new(), MountSandbox::new());
        for id in HOSTILE {
            store.worker(id, json!({"owner_id": 7, "run_id": "run 1"}));
        }
        store.worker("worker-1", json!({"owner_id": 7, "run_id": 48}));
        store.worker("worker-2", json!({"owner_id": 8, "run_id": 49}));
        store.call("worker-1", 1, "sh", "out").write("workers/worker-1/a b.md", "text");
        for id in ["x\u{1b}[31m", "x\n\rforged", "x\u{9b}2J", "x\u{202e}y", "x\u{7f}"] {
            store.worker(id, json!({"owner_id": 7, "run_id": id}));
        }
        for shell in ["bash", "zsh", "fish"] {
            let script = run(swarmletfs(["completions", shell])).assert_success().out.clone();
            fs::write(sandbox.at(format!("script.{shell}")), script).unwrap();
        }
        Completions { store, sandbox }
    }

    /// Returns a shell that finds the program and the store, and has time.
    fn shell(&self, shell: &str, options: &[&str]) -> Command {
        let mut command = program(shell, options);
        let folder = Path::new(PROGRAM).parent().unwrap().to_str().unwrap();
        command.env("PATH", format!("{folder}:/usr/bin:/bin"));
        command.env("SWARMLET_STORE", self.store.path());
        command.env("SWARMLETFS_COMPLETION_TIME", "60s");
        command.env("HOME", self.sandbox.path()).env("XDG_CONFIG_HOME", self.sandbox.path());
        command.env("XDG_CACHE_HOME", self.sandbox.at("cache")).env("LC_ALL", "C.UTF-8");
        command.current_dir(self.sandbox.path());
        command
    }

    /// Returns the candidates of bash for a line, as it would insert them.
    fn bash(&self, line: &str) -> Vec<String> {
        let script = r#"source ./script.bash
            COMP_LINE=$1 COMP_POINT=${#1}
            _swarmletfs swarmletfs "$2"
            printf '%s\n' "${COMPREPLY[@]}""#;
        let mut command = self.shell("bash", &["--norc", "-c", script, "bash", line]);
        command.arg(line.rsplit([' ', '=']).next().unwrap());
        run(command).assert_success().out.lines().map(str::to_owned).collect()
    }

    /// Fails if a name was run as a command, or anything was written.
    fn check_untouched(&self) {
        assert!(!self.sandbox.at("X").exists() && !self.store.at("X").exists());
        assert!(!self.sandbox.at("cache").exists());
    }
}

#[test]
fn bash_completes_values_from_the_store() {
    if !is_here("bash") {
        return;
    }
    let completions = Completions::new();
    for (line, expected) in [
        ("swarmletfs changes wor", &["worker-1 ", "worker-2 "][..]),
        ("swarmletfs compare worker-1 worker-2", &["worker-2 "]),
        ("swarmletfs ls --run 4", &["48 ", "49 "]),
        ("swarmletfs ls --run=48", &["48 "]),
        ("swarmletfs ls --run ru", &["run\\ 1 "]),
        ("swarmletfs cat workers/worker-1/a", &["workers/worker-1/a\\ b.md "]),
        ("swarmletfs cat workers/worker-1/t", &["workers/worker-1/tool_calls/"]),
        (
            "swarmletfs cat workers/worker-1/tool_calls/",
            &["workers/worker-1/tool_calls/001_sh.txt "],
        ),
        ("swarmletfs ls wor", &["workers/"]),
        ("swarmletfs ls runs/l", &["runs/latest/"]),
        ("swarmletfs ls --owner 8 workers/wor", &["workers/worker-2/"]),
        ("swarmletfs ls --owner 8 --run=", &["49 "]),
        ("swarmletfs ls --run 48 workers/wor", &["workers/worker-1/"]),
        ("swarmletfs ls --owner 8 workers/worker-1/", &[""]),
        ("swarmletfs ls --store /missing wor", &[""]),
        ("swarmletfs ls nothing/", &[""]),
    ] {
        assert_eq!(completions.bash(line), expected, "{line}");
    }
    completions.check_untouched();
}

#[test]
fn options_and_commands_are_completed_without_a_store() {
    if !is_here("bash") {
        return;
    }
    let completions = Completions::new();
    assert_eq!(completions.bash("swarmletfs ls --hard"), ["--hard-links "]);
    assert_eq!(completions.bash("swarmletfs ls --sort si"), ["size "]);
}

/// Promise: A shell completes the name of a worker as one word: nothing in it is run, and nothing
/// is written.
#[test]
fn shells_insert_hostile_names_as_one_word() {
    let completions = Completions::new();
    let bash = ["--noprofile", "--rcfile", "./rc", "-i"];
    let zsh = ["-i"];
    for (shell, options) in [("bash", &bash[..]), ("zsh", &zsh[..])] {
        if !is_here(shell) || !is_here("setsid") {
            continue;
        }
        let setup = match shell {
            "bash" => "bind 'set enable-bracketed-paste off'; source ./script.bash\n",
            _ => "autoload -U compinit; compinit -D -u; source ./script.zsh; bindkey -e\n",
        };
        let rc = format!("PS1='READY> '\n{setup}show() {{ printf '<%s>' \"$@\"; echo; }}\n");
        for name in ["rc", ".zshrc"] {
            fs::write(completions.sandbox.at(name), &rc).unwrap();
        }
        let mut command = completions.shell(shell, options);
        command.env("ZDOTDIR", completions.sandbox.path()).env_remove("INPUTRC");
        let mut terminal = Terminal::start(&command);
        terminal.expect("READY> ");
        for id in HOSTILE {
            // The command becomes the argument of one that shows its arguments.
            terminal.send(&format!("swarmletfs changes {}\t\u{1}show \n", &id[..1]));
            terminal.expect(&format!("<swarmletfs><changes><{id}>"));
            terminal.expect("READY> ");
        }
        // A list of candidates has no name that could control the terminal.
        terminal.send("swarmletfs changes x\t\t\u{15}show end\n");
        terminal.expect("<end>");
        terminal.expect("READY> ");
        terminal.send("swarmletfs ls --run=48\tworkers/worker-1/tool\t\u{1}show \n");
        terminal.expect("<swarmletfs><ls><--run=48><workers/worker-1/tool_calls/>");
        terminal.send("exit\n");
        let (_, shown) = terminal.end();
        assert!(!shown.contains("forged") && !shown.contains("swarmletfs: "), "{shown:?}");
        completions.check_untouched();
    }
}

#[test]
fn fish_completes_values_from_the_store() {
    if !is_here("fish") {
        return;
    }
    let completions = Completions::new();
    let complete = |line: &str| {
        let script = "source ./script.fish; complete -C $argv[1] | string escape -n; true";
        let done = run(completions.shell("fish", &["--no-config", "-c", script, line]));
        let lines: Vec<String> = done.assert_success().out.lines().map(str::to_owned).collect();
        assert_eq!(done.err, "", "{line}");
        lines
    };
    for (line, expected) in [
        ("swarmletfs changes worker-", &["worker-1", "worker-2"][..]),
        ("swarmletfs worker show worker-", &["worker-1", "worker-2"]),
        ("swarmletfs ls --run 4", &["48", "49"]),
        ("swarmletfs ls --run=48", &["--run=48"]),
        ("swarmletfs cat workers/worker-1/t", &["workers/worker-1/tool_calls/"]),
        ("swarmletfs cat 'workers/worker-1/a", &["workers/worker-1/a\\ b.md"]),
        ("swarmletfs ls --owner 8 workers/wor", &["workers/worker-2/"]),
        ("swarmletfs changes x", &[]),
        ("swarmletfs ls --sort si", &["size"]),
    ] {
        assert_eq!(complete(line), expected, "{line}");
    }
    for id in HOSTILE {
        let found = complete(&format!("swarmletfs changes {}", &id[..1]));
        let script = "string unescape $argv[1]";
        let unescaped = run(program("fish", ["--no-config", "-c", script, &found[0]]));
        assert_eq!(unescaped.out.trim_end(), id, "{found:?}");
    }
    completions.check_untouched();
}

#[test]
fn mountpoints_are_completed() {
    needs_fuse!();
    let (store, sandbox) = (small_store(), MountSandbox::new());
    let point = sandbox.folder("mnt");
    mount(&store.path(), &point, &[]).assert_success();
    for command in ["umount", "unmount", "attach", "detach"] {
        let found =
            answer_within("60s", &store.path(), &[command, sandbox.path().to_str().unwrap()]);
        assert!(found.lines().any(|line| Path::new(line) == point), "{found:#?}");
    }
    umount(&point, &[]).assert_success();
}

/// Returns the answer to fish for words, within a time.
fn answer_within(time: &str, store: &Path, words: &[&str]) -> String {
    let mut command = swarmletfs(["--", "swarmletfs"]);
    command.args(words).env("SWARMLETFS_COMPLETE", "fish").env("SWARMLET_STORE", store);
    command.env("SWARMLETFS_COMPLETION_TIME", time);
    let done = run(command);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{words:?}");
    done.out
}

#[test]
fn arguments_with_values_of_a_store_are_completed() {
    let store = small_store();
    store.write("supervisor/a.md", "text");
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        answer_within("60s", &store.path(), &words)
    };
    for command in ["ls -l a", "tree", "stat", "cat", "grep -i x", "search x"] {
        assert_eq!(complete(&format!("{command} wor")), "workers/\n", "{command}");
    }
    for command in [
        "compare a",
        "changes",
        "apply",
        "undo",
        "discard",
        "audit --worker",
        "record --worker",
        "run --recover",
        "run --parent",
        "worker create --parent",
        "worker show",
        "worker record",
        "worker message",
        "worker finish",
        "worker annotate",
        "worker put",
    ] {
        assert_eq!(complete(&format!("{command} w")), "w1\n", "{command}");
    }
    for command in ["ls --run", "grep --run", "worker create --run"] {
        assert_eq!(complete(&format!("{command} 4")), "48\n", "{command}");
    }
    assert_eq!(complete("grep --run=4"), "--run=48\n");
    for command in ["note read", "note write", "note append"] {
        assert_eq!(complete(&format!("{command} a")), "a.md\n", "{command}");
    }
    for line in ["worker put w1 w", "grep w", "changes w1 w", "record -- ls w1", "ls --sort w"] {
        assert_eq!(complete(line), "", "{line}");
    }
}

#[test]
fn files_are_completed_where_no_store_has_the_values() {
    let sandbox = MountSandbox::new();
    for name in ["file", "fi\x1b[31m", "fi\nforged"] {
        fs::write(sandbox.at(name), "").unwrap();
    }
    let typed = sandbox.at("fi");
    let typed = typed.to_str().unwrap();
    for words in [&["mount"][..], &["ls", "--store"], &["record", "--", "cat"], &[]] {
        let found = answer_within("60s", &sandbox.path(), &[words, &[typed]].concat());
        assert_eq!(found, format!("{typed}le\n"), "{words:?}");
    }
}

#[test]
fn completion_gives_up_quietly() {
    let store = small_store();
    let complete = |words: &[&str], time: &str| answer_within(time, &store.path(), words);
    assert_eq!(complete(&["changes", "w"], "60s"), "w1\n");
    // No time: no store is read so quickly.
    assert_eq!(complete(&["changes", "w"], "0s"), "");
    // A store that cannot be read, and lines that no command has.
    assert_eq!(complete(&["ls", "--store", "/missing", ""], "60s"), "");
    assert_eq!(complete(&["changes", "--no-such-option", "w"], "60s"), "");
    let mut command = swarmletfs(["--", "swarmletfs", ""]);
    command.env("SWARMLETFS_COMPLETE", "no-shell");
    let done = run(command);
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(1), "", ""));
}
