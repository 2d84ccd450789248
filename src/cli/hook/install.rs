//! `swarmletfs hook install`: puts the hook into the settings of a program, or takes it out.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::cli::discover;
use crate::cli::terminal::{Prompt, display_path, escape_controls};
use crate::text::unified;
use crate::trace::KnownFormat;
use crate::trace::known::{CLAUDE_CODE, CODEX, COPILOT_CLI};

pub(super) const HELP: &str = "\
It shows the change to the settings and asks. Everything else in them stays; the file is written \
anew with two spaces for each level. --remove takes out only what this command puts in.

The settings of Codex are in hooks.json. Codex asks at its next start whether you trust the hook. \
Those of Copilot are hooks/swarmletfs.json, in a project .github/hooks/swarmletfs.json.

Examples:
  swarmletfs hook install claude-code              for all projects of this user
  swarmletfs hook install claude-code --project    for the project in the current directory
  swarmletfs hook install claude-code --remove
  swarmletfs hook install codex
  swarmletfs hook install copilot

Exit code: 0, also if there is nothing to change; 1 if the answer is no, or after an error.";

/// Time that the program gives to the hook, in seconds.
const TIMEOUT: u64 = 5;
const HOOKS: &str = "hooks";

/// Arguments of `hook install`.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// The program whose settings are changed
    program: HookProgram,
    /// Change the settings of the project in the current directory, not those of the user
    #[arg(long)]
    project: bool,
    /// Take the hook out of the settings
    #[arg(long)]
    remove: bool,
    /// Change the settings without asking
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum HookProgram {
    ClaudeCode,
    Codex,
    Copilot,
}

/// The settings of a program.
struct HookSettings {
    format: &'static KnownFormat,
    /// The folder of the settings of a project, in the project.
    project: &'static str,
    file: &'static str,
    /// The command that the hook runs, by which it is recognized.
    command: &'static str,
    /// The events of the hook, with the calls that they are about.
    events: &'static [(&'static str, Option<&'static str>)],
    /// True if the hooks of an event are a list without groups, as in Copilot.
    is_flat: bool,
}

static OF_CLAUDE_CODE: HookSettings = HookSettings {
    format: &CLAUDE_CODE,
    project: ".claude",
    file: "settings.json",
    command: "swarmletfs hook claude-code",
    events: &[("PostToolUse", Some("Task|Agent")), ("UserPromptSubmit", None)],
    is_flat: false,
};

/// Codex puts a group of tools before the name of a call, as in `collaborationwait_agent`.
static OF_CODEX: HookSettings = HookSettings {
    format: &CODEX,
    project: ".codex",
    file: "hooks.json",
    command: "swarmletfs hook codex",
    events: &[("PostToolUse", Some(".*_agents?$")), ("UserPromptSubmit", None)],
    is_flat: false,
};

static OF_COPILOT: HookSettings = HookSettings {
    format: &COPILOT_CLI,
    project: ".github",
    file: "hooks/swarmletfs.json",
    command: "swarmletfs hook copilot",
    events: &[("postToolUse", None)],
    is_flat: true,
};

pub(super) fn run(arguments: &InstallArgs) -> anyhow::Result<ExitCode> {
    let program = match arguments.program {
        HookProgram::ClaudeCode => &OF_CLAUDE_CODE,
        HookProgram::Codex => &OF_CODEX,
        HookProgram::Copilot => &OF_COPILOT,
    };
    let path = program.path(arguments.project)?;
    let before = read(&path)?;
    let changed = parse(&before).and_then(|mut settings| {
        let is_changed = match arguments.remove {
            true => program.remove(&mut settings),
            false => program.add(&mut settings)?,
        };
        Ok((settings, is_changed))
    });
    let (settings, is_changed) = changed.map_err(|why| {
        anyhow::anyhow!("cannot change {}: {why}; try to correct it first", path.display())
    })?;
    if !is_changed {
        let state = if arguments.remove { "does not have" } else { "has" };
        writeln!(io::stdout(), "{} {state} the hook; nothing to change", display_path(&path))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut after = serde_json::to_string_pretty(&settings)?;
    after.push('\n');
    let hunks = unified::hunks(&before, &after);
    let lines = hunks.iter().flat_map(|hunk| hunk.text.lines()).map(escape_controls);
    let lines: Vec<String> = std::iter::once(display_path(&path)).chain(lines).collect();
    writeln!(io::stdout(), "{}", lines.join("\n"))?;
    let is_agreed =
        arguments.yes || Prompt::open("change the settings", "--yes")?.confirm("Write this?")?;
    if !is_agreed {
        eprintln!("swarmletfs: nothing was changed");
        return Ok(ExitCode::FAILURE);
    }
    if read(&path)? != before {
        bail!("cannot change {}: it was changed meanwhile; try again", path.display());
    }
    write(&path, &after).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the settings. An absent file is empty.
fn read(path: &Path) -> anyhow::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("cannot read {}", path.display())),
    }
}

fn parse(text: &str) -> Result<Map<String, Value>, String> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))
}

impl HookSettings {
    /// Returns the path of the settings. A link is resolved, so that it stays.
    fn path(&self, of_project: bool) -> anyhow::Result<PathBuf> {
        let folder = if of_project {
            let current = std::env::current_dir().context("cannot find the current directory")?;
            Some(current.join(self.project))
        } else {
            discover::folders_of(self.format).into_iter().next()
        };
        let folder = folder.context("cannot find the settings: HOME is not set; try --project")?;
        let path = folder.join(self.file);
        Ok(path.canonicalize().unwrap_or(path))
    }

    /// Adds the hook to the events that do not have it. Returns true if it was added.
    fn add(&self, settings: &mut Map<String, Value>) -> Result<bool, String> {
        let mut is_changed = false;
        if self.is_flat {
            settings.entry("version").or_insert(json!(1));
        }
        let hooks = settings.entry(HOOKS).or_insert_with(|| json!({}));
        let hooks = hooks.as_object_mut().ok_or("`hooks` is not an object")?;
        for (event, matcher) in self.events {
            let entries = hooks.entry(*event).or_insert_with(|| json!([]));
            let entries = entries.as_array_mut();
            let entries = entries.ok_or_else(|| format!("`hooks.{event}` is not an array"))?;
            let is_here = |entry: &Value| {
                self.is_ours(entry) || commands(entry).iter().any(|command| self.is_ours(command))
            };
            if entries.iter().any(is_here) {
                continue;
            }
            if self.is_flat {
                let hook = json!({"type": "command", "bash": self.command, "timeoutSec": TIMEOUT});
                entries.push(hook);
                is_changed = true;
                continue;
            }
            let hook = json!({"type": "command", "command": self.command, "timeout": TIMEOUT});
            let mut entry = Map::new();
            entry.extend(matcher.map(|matcher| ("matcher".to_owned(), json!(matcher))));
            entry.insert(HOOKS.to_owned(), json!([hook]));
            entries.push(entry.into());
            is_changed = true;
        }
        Ok(is_changed)
    }

    /// Removes the hook, and what is empty without it. Returns true if it was there.
    fn remove(&self, settings: &mut Map<String, Value>) -> bool {
        let Some(Value::Object(hooks)) = settings.get_mut(HOOKS) else { return false };
        let mut is_changed = false;
        for (event, _) in self.events {
            let Some(Value::Array(entries)) = hooks.get_mut(*event) else { continue };
            let mut is_here = false;
            entries.retain_mut(|entry| {
                if self.is_ours(entry) {
                    is_here = true;
                    return false;
                }
                let Some(Value::Array(commands)) = entry.get_mut(HOOKS) else { return true };
                let before = commands.len();
                commands.retain(|command| !self.is_ours(command));
                is_here |= commands.len() < before;
                commands.len() == before || !commands.is_empty()
            });
            is_changed |= is_here;
            if is_here && entries.is_empty() {
                hooks.shift_remove(*event);
            }
        }
        if is_changed && hooks.is_empty() {
            settings.shift_remove(HOOKS);
        }
        is_changed
    }

    /// Returns true for this hook, also with a path or options.
    fn is_ours(&self, command: &Value) -> bool {
        let command = ["command", "bash"].iter().find_map(|name| command.get(*name)?.as_str());
        let command = command.unwrap_or_default();
        let (program, rest) = command.trim().split_once(' ').unwrap_or((command, ""));
        let name = program.rsplit('/').next().unwrap_or_default();
        format!("{name} {rest}").starts_with(self.command)
    }
}

fn commands(entry: &Value) -> &[Value] {
    entry.get(HOOKS).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Replaces the file by a new one with the same permissions.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    if let Ok(meta) = fs::metadata(path) {
        file.as_file().set_permissions(fs::Permissions::from_mode(meta.permissions().mode()))?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
