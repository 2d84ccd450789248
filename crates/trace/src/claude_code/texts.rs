//! The texts by which the program itself speaks in the name of a user or a tool. They are data:
//! where a record has a flag with the same meaning, the flag counts.

/// Beginnings of the result of a call that never ran: a rule, a hook or the classifier of the
/// automatic mode forbade it, nobody could be asked, or a parallel call failed.
const NOT_RUN: [&str; 12] = [
    "Sibling tool call errored",
    "Cancelled: parallel tool call",
    "Permission to use ",
    "Permission for this ",
    "Claude requested permissions to",
    "This command requires approval",
    "This Bash command contains multiple operations. The following part",
    "PreToolUse:",
    "Hook PreToolUse:",
    "Execution stopped by PreToolUse hook",
    "File is in a directory that is denied by your permission settings",
    "Blocked: ",
];
const TOOL_USE_ERROR_TAG: &str = "<tool_use_error>";
/// The beginning of the result of a call that the user refused, or cut off while it ran.
const REFUSED: &str = "The user doesn't want to";
/// The text before the words of the user in such a result.
const REFUSAL_WORDS_START: &str = "the user said:\n";
const INTERRUPTED: &str = "[Request interrupted by user";

/// Beginnings of a line in the result of a call whose work goes on in the background. The ID of
/// the work follows.
const STARTED: [&str; 4] = [
    "Command running in background with ID: ",
    "Command was manually backgrounded by user with ID: ",
    "Async agent launched successfully",
    "Workflow launched in background. Task ID: ",
];
/// The text before the ID of a command that was moved to the background.
const MOVED: &str = "was moved to the background (ID: ";
/// Number of bytes at the end of a result that are searched for the start of such work.
const STARTED_MAX: usize = 4_096;

/// Tags of texts that the program writes in the user's name.
const PROGRAM_TAGS: [(&str, Writer); 20] = [
    ("command-name", Writer::Command),
    ("command-message", Writer::Command),
    ("command-args", Writer::Command),
    ("bash-input", Writer::Command),
    ("local-command-stdout", Writer::Output),
    ("local-command-stderr", Writer::Output),
    ("bash-stdout", Writer::Output),
    ("bash-stderr", Writer::Output),
    ("user-prompt-submit-hook", Writer::Output),
    ("system-reminder", Writer::Reminder),
    ("ide_opened_file", Writer::Reminder),
    ("ide_selection", Writer::Reminder),
    ("ide_diagnostics", Writer::Reminder),
    ("local-command-caveat", Writer::Reminder),
    ("task-notification", Writer::Reminder),
    ("teammate-message", Writer::Reminder),
    ("agent-message", Writer::Reminder),
    ("channel", Writer::Reminder),
    ("scheduled-task", Writer::Reminder),
    ("fork-boilerplate", Writer::Reminder),
];
/// The beginning of a text of the program that has no tag.
const CAVEAT: &str = "Caveat: The messages below";
const FORK_TAG: &str = "<fork-boilerplate>";
/// The words between the program's part of the first message of a fork and its task.
const DIRECTIVE: &str = "Your directive: ";

/// The beginning of the first message of an agent in a workflow. Its task follows, indented.
const WORKFLOW: &str = "[Workflow harness";

/// Commands that the program answers itself, without the assistant.
const LOCAL_COMMANDS: [&str; 50] = [
    "add-dir",
    "agents",
    "allowed-tools",
    "bashes",
    "branch",
    "bg",
    "bug",
    "clear",
    "color",
    "compact",
    "config",
    "context",
    "copy",
    "cost",
    "doctor",
    "effort",
    "exit",
    "export",
    "extra-usage",
    "fast",
    "feedback",
    "fork",
    "help",
    "hooks",
    "ide",
    "keybindings",
    "login",
    "logout",
    "mcp",
    "memory",
    "model",
    "output-style",
    "permissions",
    "plugin",
    "privacy-settings",
    "quit",
    "reload-plugins",
    "remote-control",
    "rename",
    "resume",
    "rewind",
    "sandbox",
    "settings",
    "stats",
    "status",
    "statusline",
    "terminal-setup",
    "theme",
    "usage",
    "vim",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// A command of the program or its shell, which the user typed.
    Command,
    Output,
    Reminder,
}

pub(super) fn is_refusal(text: &str) -> bool {
    let text = text.strip_prefix(TOOL_USE_ERROR_TAG).unwrap_or(text);
    NOT_RUN.iter().any(|prefix| text.starts_with(prefix)) || refusal_words(text).is_some()
}

/// Returns true if a failed result states that the user refused the call or cut it off.
pub(super) fn is_cut_off(text: &str) -> bool {
    text.starts_with(REFUSED) || is_interruption(text)
}

/// Returns the words of the user who refused a call, from the text of its result.
pub(super) fn refusal_words(result: &str) -> Option<&str> {
    let (_, words) = result.strip_prefix(REFUSED)?.split_once(REFUSAL_WORDS_START)?;
    Some(words).filter(|words| !words.trim().is_empty())
}

pub(super) fn is_interruption(text: &str) -> bool {
    text.starts_with(INTERRUPTED)
}

/// Returns the ID of the background work that a result announces; empty if the result names none.
pub(super) fn started_work(result: &str) -> Option<&str> {
    let from = result.ceil_char_boundary(result.len().saturating_sub(STARTED_MAX));
    result.get(from..)?.lines().find_map(|line| {
        let prefix = STARTED.iter().find_map(|prefix| line.strip_prefix(prefix));
        let moved = || line.starts_with("Command ").then(|| line.split_once(MOVED)).flatten();
        let rest = prefix.or_else(|| moved().map(|(_, rest)| rest))?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        rest.get(..end)
    })
}

/// Removes the parts that the program wrote from both ends of a text in the user's name, and calls
/// `on_part` with the author of each. Returns the rest, which is the user's.
pub(super) fn user_part(text: &str, mut on_part: impl FnMut(Writer)) -> &str {
    let mut rest = text.trim();
    if rest.starts_with(CAVEAT) {
        on_part(Writer::Reminder);
        return "";
    }
    while let Some((tag, writer)) = leading_tag(rest) {
        on_part(writer);
        let end = rest.split_once(&format!("</{tag}>"));
        rest = end.map_or("", |(_, after)| after.trim_start());
    }
    while let Some(before) = rest.strip_suffix("</system-reminder>") {
        let Some((before, _)) = before.rsplit_once("<system-reminder>") else { break };
        on_part(Writer::Reminder);
        rest = before.trim_end();
    }
    let own = match rest {
        _ if begins_fork(text) => rest.strip_prefix(DIRECTIVE),
        _ if rest.starts_with(WORKFLOW) => rest.split_once("\n  ").map(|(_, task)| task),
        _ => None,
    };
    own.unwrap_or(rest)
}

/// Returns true for the first message of a fork. The records before it repeat its session.
pub(super) fn begins_fork(text: &str) -> bool {
    text.trim_start().starts_with(FORK_TAG)
}

fn leading_tag(text: &str) -> Option<(&'static str, Writer)> {
    let rest = text.strip_prefix('<')?;
    PROGRAM_TAGS.into_iter().find(|(tag, _)| {
        rest.strip_prefix(tag).is_some_and(|rest| rest.starts_with(['>', ' ', '\n']))
    })
}

/// A command that the user typed, such as `/review main`.
pub(super) struct TypedCommand<'a> {
    name: &'a str,
    pub(super) arguments: &'a str,
    /// True if the command is a prompt that is stored under a name.
    is_prompt: bool,
}

impl<'a> TypedCommand<'a> {
    pub(super) fn parse(text: &'a str) -> Option<TypedCommand<'a>> {
        let text = text.trim();
        let is_prompt = text.starts_with("<command-message>");
        if !is_prompt && !text.starts_with("<command-name>") {
            return None;
        }
        let name = element(text, "command-name")?.trim().trim_start_matches('/');
        let arguments = element(text, "command-args").unwrap_or_default().trim();
        (!name.is_empty()).then_some(TypedCommand { name, arguments, is_prompt })
    }

    /// Returns true if the assistant answers the command.
    pub(super) fn is_request(&self) -> bool {
        let is_local = LOCAL_COMMANDS.contains(&self.name);
        self.is_prompt || !is_local && !self.arguments.is_empty()
    }

    pub(super) fn is_farewell(&self) -> bool {
        matches!(self.name, "exit" | "quit" | "clear")
    }

    pub(super) fn typed(&self) -> String {
        format!("/{} {}", self.name, self.arguments).trim_end().to_owned()
    }
}

/// A report of the program on work in the background.
pub(super) struct Notification<'a> {
    pub(super) task: &'a str,
    /// The ID of the call that started it; empty if the report names none.
    pub(super) call: &'a str,
    pub(super) status: &'a str,
    pub(super) summary: &'a str,
    result: &'a str,
    /// The failures inside the work.
    pub(super) failures: &'a str,
    output: &'a str,
}

const NOTIFICATION: &str = "<task-notification>";

impl<'a> Notification<'a> {
    /// Parses the reports in a text that begins with one. A report that announces no end has no
    /// status.
    pub(super) fn parse_all(text: &'a str) -> impl Iterator<Item = Notification<'a>> {
        let text = text.trim_start();
        let parts = text.split(NOTIFICATION).skip(1);
        parts.filter(move |_| text.starts_with(NOTIFICATION)).map(|part| {
            let field = |name| element(part, name).unwrap_or_default().trim();
            Notification {
                task: field("task-id"),
                call: field("tool-use-id"),
                status: field("status"),
                summary: field("summary"),
                result: field("result"),
                failures: field("failures"),
                output: field("output-file"),
            }
        })
    }

    pub(super) fn text(&self) -> String {
        let output = Some(self.output).filter(|path| !path.is_empty());
        let output = output.map(|path| format!("The output is in {path}"));
        let texts = [self.summary, self.failures, self.result, output.as_deref().unwrap_or("")];
        texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn exit_code(&self) -> Option<i64> {
        // The description of the work comes before it, and may hold anything.
        let starts =
            ["exit code ", "(exit "].map(|start| Some((self.summary.rfind(start)?, start)));
        let (at, start) = starts.into_iter().flatten().max()?;
        let rest = self.summary.get(at + start.len()..)?;
        leading_number(rest)
    }
}

pub(super) fn leading_number(text: &str) -> Option<i64> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '-')).next()?.parse().ok()
}

/// Returns the content of the first element `name` in a text.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(content, _)| content)
}
