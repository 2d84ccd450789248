//! Parses README.md or a page of docs/scenarios into blocks, and runs them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use regex::Regex;

use crate::cli::program::run;
use crate::support::Mount;
use crate::support::mount::PROGRAM;

/// Search path with the system's tools only.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// A fenced block of a page: the words after the fence, and the lines inside.
struct Block {
    kind: String,
    body: String,
}

/// A page, and a directory to run it in: `project` is the workspace, and `swarm` the store.
pub struct Page {
    blocks: Vec<Block>,
    dir: tempfile::TempDir,
}

/// Unmounts when it is dropped, if a command did not.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new(PROGRAM).args(["umount", "--lazy"]).arg(&self.0).output();
    }
}

impl Page {
    /// Reads a page of docs/scenarios by its name.
    pub fn read(name: &str) -> Page {
        let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/scenarios");
        let text = fs::read_to_string(pages.join(format!("{name}.md"))).unwrap();
        // A sandbox has a /tmp of its own.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(dir.path().join("home")).unwrap();
        Page { blocks: blocks(&text), dir }
    }

    /// Reads README.md, to be run in a folder with the scripts of the repository.
    pub fn readme() -> Page {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(root.join("README.md")).unwrap();
        let page = Page { blocks: blocks(&text), ..Page::read("code-analysis") };
        symlink(root.join("scripts"), page.at("scripts")).unwrap();
        page
    }

    /// Runs all blocks in their order, as a person types them in one shell, and compares what
    /// commands print with what is shown. The program is installed already.
    pub fn run_in_one_shell(&self) {
        const INSTALL: &str = "cargo install --locked --path .";
        let _unmount = Unmount(self.at("home/swarm"));
        let state = self.at("state");
        fs::write(&state, "").unwrap();
        let mut shown_commands = 0;
        for block in &self.blocks {
            if block.kind == "sh" {
                if block.body.starts_with(INSTALL) {
                    assert_eq!(block.body.lines().count(), 1, "{}", block.body);
                    continue;
                }
                let state = state.display();
                let script = format!(
                    ". {state}\n{}{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {state}\n",
                    block.body
                );
                self.prepare(&script);
                continue;
            }
            assert_eq!(block.kind, "console", "{}", block.body);
            for (command, shown) in commands_of(&block.body) {
                let script = format!(". {}\n{command}\n", state.display());
                let done = run(self.shell(&script, &self.at("")));
                assert_shown(&shown, &done.assert_success().out, &command);
                shown_commands += 1;
            }
        }
        assert!(shown_commands >= 3, "only {shown_commands} commands have shown output");
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Returns a shell that runs `script` in `folder` and stops at the first error.
    fn shell(&self, script: &str, folder: &Path) -> Command {
        let programs = Path::new(PROGRAM).parent().unwrap().display();
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", script]).current_dir(folder).stdin(Stdio::null());
        shell.env_clear().envs([
            ("PATH", format!("{programs}:{PATH}")),
            ("LC_ALL", "C.UTF-8".to_owned()),
            ("TZ", "UTC".to_owned()),
            ("GIT_CONFIG_NOSYSTEM", "1".to_owned()),
        ]);
        shell.env("HOME", self.at("home")).env("XDG_CACHE_HOME", self.at("cache"));
        // The folder of the tests may be in a repository of git.
        shell.env("GIT_CEILING_DIRECTORIES", self.at(""));
        shell
    }

    fn prepare(&self, script: &str) {
        run(self.shell(script, &self.at(""))).assert_success();
    }

    /// Runs all commands of the page, and compares their stdout with what the page shows.
    pub fn run_commands(&self) {
        let mut mount = None;
        let mut commands = 0;
        for block in &self.blocks {
            let folder = match block.kind.as_str() {
                "sh" => {
                    self.prepare(&block.body);
                    continue;
                }
                "console" => self.at("project"),
                "console mount" => {
                    mount.get_or_insert_with(|| Mount::new(&self.at("swarm"))).path()
                }
                _ => continue,
            };
            for (command, shown) in commands_of(&block.body) {
                let mut shell = self.shell(&command, &folder);
                shell.env("SWARMLET_STORE", self.at("swarm"));
                let done = run(shell);
                let differs = command.starts_with("swarmletfs compare ");
                assert_eq!(done.code, Some(i32::from(differs)), "{command}: {done:#?}");
                assert_shown(&shown, &done.out, &command);
                commands += 1;
            }
        }
        assert!(commands > 5 && mount.is_some(), "the page has only {commands} commands");
    }

    /// Runs all sessions by MCP of the page with `play`, and compares their results with what the
    /// page shows. `play` takes sessions as tests/mcp/roles.py describes them, with their role and
    /// project, and returns what they did. Returns `None` if `play` does.
    #[cfg(feature = "mcp")]
    pub fn run_calls(
        self,
        play: impl Fn(Vec<serde_json::Value>) -> Option<Vec<serde_json::Value>>,
    ) -> Option<Page> {
        use serde_json::{Value, json};

        let mut texts = String::new();
        let (mut waiting, mut workers, mut sessions) = (Vec::new(), Vec::new(), 0);
        for (index, block) in self.blocks.iter().enumerate() {
            let role = match block.kind.split_once(' ') {
                _ if block.kind == "sh" => {
                    self.prepare(&block.body);
                    continue;
                }
                _ if block.kind == "text" => {
                    assert_shown(&block.body, &texts, "the calls above");
                    continue;
                }
                Some(("json", role)) => role,
                _ => continue,
            };
            let calls: Value = serde_json::from_str(&block.body).unwrap();
            let is_supervisor = role == "supervisor";
            let (store, project) = (self.at("swarm"), self.at("project"));
            let mut command = json!([PROGRAM, "mcp", "--as", role, "--store", store]);
            let words = command.as_array_mut().unwrap();
            if is_supervisor {
                words.push(json!("--no-cache"));
            } else {
                words.extend([json!("--workspace"), json!(project)]);
            }
            let answer = if is_supervisor { json!("yes") } else { Value::Null };
            waiting.push(json!({
                "command": command, "role": role, "project": project, "mode": "auto",
                "answer": answer, "calls": calls,
            }));
            workers.extend(role.strip_prefix("worker:"));
            sessions += 1;
            // Sessions whose results are not shown run in one process, which starts slowly.
            let next = self.blocks.get(index + 1);
            if next.is_some_and(|next| next.kind.starts_with("json worker:")) {
                continue;
            }
            let before = self.project();
            for session in play(std::mem::take(&mut waiting))? {
                texts = results(&session);
            }
            if !block.body.contains("\"apply_changes\"") {
                assert_eq!(self.project(), before, "{role}: the workspace has changed");
            }
            workers.drain(..).for_each(|worker| self.wait_for_changes(worker));
        }
        assert!(sessions > 3, "the page has only {sessions} sessions");
        Some(self)
    }

    /// Waits until the changes of a worker are recorded, which can be after its session.
    #[cfg(feature = "mcp")]
    fn wait_for_changes(&self, worker: &str) {
        let draft = self.at(&format!("swarm/drafts/{worker}/draft.json"));
        crate::cli::program::wait_until("the changes to be recorded", || {
            fs::read_to_string(&draft).is_ok_and(|text| text.contains("\"ended\""))
        });
    }

    /// Returns the workspace without its repository of git.
    #[cfg(feature = "mcp")]
    fn project(&self) -> crate::support::draft::Node {
        let mut project = crate::support::draft::Node::read(&self.at("project"));
        if let crate::support::draft::Node::Folder { entries, .. } = &mut project {
            entries.remove(".git");
        }
        project
    }

    /// Returns the text of a file in the directory of the page.
    #[cfg(feature = "mcp")]
    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }
}

/// Returns the results of a session, none of which is an error, as lines.
#[cfg(feature = "mcp")]
fn results(session: &serde_json::Value) -> String {
    let mut texts = String::new();
    for result in session["results"].as_array().unwrap() {
        assert_eq!(result["error"], false, "{result}");
        for text in result["texts"].as_array().unwrap() {
            texts.push_str(text.as_str().unwrap().trim_end());
            texts.push('\n');
        }
    }
    texts
}

/// Returns the fenced blocks of a page.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().take_while(|line| *line != "```");
        let body = inside.map(|line| format!("{line}\n")).collect();
        blocks.push(Block { kind: kind.to_owned(), body });
    }
    blocks
}

/// Returns the commands of a block, each with the output that is shown below it.
fn commands_of(body: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in body.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push((command.to_owned(), String::new()));
        } else {
            let (_, shown) = commands.last_mut().expect("output before the first command");
            shown.push_str(line);
            shown.push('\n');
        }
    }
    commands
}

/// Asserts that `output` is what is shown, in which a line `…` stands for any lines, and any other
/// `…` for any text within a line. Spaces at the ends of lines do not count.
#[track_caller]
fn assert_shown(shown: &str, output: &str, what: &str) {
    let mut pattern = String::from("^");
    for line in shown.lines() {
        if line == "…" {
            pattern.push_str("(?:.*\n)*?");
        } else {
            pattern.push_str(&regex::escape(line.trim_end()).replace('…', ".*"));
            pattern.push_str("[ \t]*\n");
        }
    }
    pattern.push('$');
    let is_shown = Regex::new(&pattern).unwrap().is_match(output);
    assert!(is_shown, "{what}\nthe page shows:\n{shown}\nthe output is:\n{output}");
}

#[test]
fn shown_output_matches_with_gaps_only_where_they_are_marked() {
    assert_shown("a\n…\nd …\n", "a\nb\nc\nd e\n", "gaps");
    assert_shown("…\n", "", "no lines");
    for (shown, output) in [("a\n", "a\nb\n"), ("a …\n", "a\nb\n"), ("", "a\n"), ("a\n…\n", "b\n")]
    {
        let matches = std::panic::catch_unwind(|| assert_shown(shown, output, "")).is_ok();
        assert!(!matches, "{shown:?} matches {output:?}");
    }
}
