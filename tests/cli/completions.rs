//! Completions in real shells, and manual pages.

use std::fs;
use std::path::Path;

use super::program::{CommandOutput, MountSandbox, program, run, swarmletfs};
use crate::support::mount::PROGRAM;
use crate::support::tool::is_here;

/// Runs a script with bash or another shell, with the completions of that shell in `$1`.
fn with_completions(shell: &str, options: &[&str], script: &str) -> Option<CommandOutput> {
    if !is_here(shell) {
        return None;
    }
    let sandbox = MountSandbox::new();
    let file = sandbox.at("_swarmletfs");
    fs::write(&file, completions(shell)).unwrap();
    let mut command = program(shell, options);
    command.args(["-c", script]);
    if shell != "fish" {
        command.arg(shell);
    }
    command.arg(&file).env("HOME", sandbox.path()).env("XDG_CONFIG_HOME", sandbox.path());
    let folder = Path::new(PROGRAM).parent().unwrap().to_str().unwrap();
    command.env("PATH", format!("{folder}:/usr/bin:/bin"));
    Some(run(command))
}

fn completions(shell: &str) -> String {
    run(swarmletfs(["completions", shell])).assert_success().out.clone()
}

#[test]
fn bash_completes_commands_and_options() {
    let script = r#"set -eu
        source "$1"
        try() { COMP_LINE="$*" COMP_POINT=1000; _swarmletfs swarmletfs "${!#}"; echo "${COMPREPLY[*]}"; }
        try swarmletfs com
        try swarmletfs ls --so
        try swarmletfs ls --sort ""
        try swarmletfs worker cr"#;
    let Some(done) = with_completions("bash", &["--norc"], script) else { return };
    assert_eq!(
        done.assert_success().out,
        "compare  completions \n--sort \nname  time  size  outcome \ncreate \n"
    );
}

#[test]
fn fish_completes_commands_and_options() {
    let script = r#"source $argv[1]
        complete -C "swarmletfs comp" | cut -f 1
        complete -C "swarmletfs ls --so" | cut -f 1
        complete -C "swarmletfs worker cr" | cut -f 1"#;
    let Some(done) = with_completions("fish", &["--no-config"], script) else { return };
    assert_eq!(done.assert_success().out, "compare\ncompletions\n--sort\ncreate\n");
}

#[test]
fn zsh_loads_the_completions() {
    let script = r#"autoload -U compinit; compinit -D -u; source "$1"; echo ${_comps[swarmletfs]}"#;
    let Some(done) = with_completions("zsh", &["-f"], script) else { return };
    assert_eq!((done.assert_success().out.as_str(), done.err.as_str()), ("_swarmletfs\n", ""));
}

#[test]
fn completions_offer_no_hidden_option() {
    for command in ["mount", "run", "ls"] {
        let mut command = swarmletfs(["--", "swarmletfs", command, "--"]);
        command.env("SWARMLETFS_COMPLETE", "fish");
        let done = run(command);
        assert!(done.assert_success().out.contains("--help"), "{done:#?}");
        assert!(!done.out.contains("--__"), "{done:#?}");
    }
    run(swarmletfs(["completions", "cmd"])).assert_failure(2, &["bash", "zsh", "fish"]);
}

#[test]
fn each_command_has_a_manual_page_without_errors() {
    let sandbox = MountSandbox::new();
    let dir = sandbox.at("share/man1");
    let mut command = swarmletfs(["man"]);
    command.arg(&dir);
    assert_eq!(run(command).assert_success().out, "");
    for page in ["swarmletfs", "swarmletfs-mount", "swarmletfs-ls", "swarmletfs-worker-create"] {
        let text = fs::read_to_string(dir.join(format!("{page}.1"))).unwrap();
        assert!(text.contains("Example"), "{page}: {text}");
        assert!(!text.contains("__s"), "{page}: {text}");
    }
    let own = run(swarmletfs(["man"]));
    assert_eq!(own.assert_success().out, fs::read_to_string(dir.join("swarmletfs.1")).unwrap());
    if !is_here("mandoc") {
        return;
    }
    let mut command = program("bash", ["-c", "mandoc -T lint -W error \"$0\"/*.[18]"]);
    let done = run({
        command.arg(&dir);
        command
    });
    assert_eq!(done.assert_success().out, "");
}
