//! Recognizes the purpose of a call: a look at something, an edit, a check of the work, a delivery.
//!
//! A check or a delivery is recognized by general words in the command, and by a short table of
//! well-known programs whose names say nothing. No output of a program is parsed.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use super::attempt::{is_assignment, split};
use super::{AccessKind, ToolCall};

/// Number of words of a command that name its action.
const COMMAND_WORDS: usize = 4;

/// Purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    /// Reads, searches, lists or fetches something, and changes nothing.
    Look,
    Edit,
    /// Verifies the work.
    Check,
    Command,
    Delegate,
    Ask,
}

/// A step that verifies or delivers the work. Its failure matters until it is made good.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WorkStep {
    Test(TestScope),
    Lint,
    Format,
    Build,
    /// A check of which no word says more.
    Check,
    /// A look at the state of checks that run elsewhere.
    CiState,
    /// A command that changes or publishes something beyond the files, by its verb.
    Deliver(&'static str),
}

/// Which tests run. A wider scope includes the unit tests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TestScope {
    Unit,
    Integration,
    EndToEnd,
    All,
}

impl WorkStep {
    pub fn is_check(self) -> bool {
        !matches!(self, WorkStep::Deliver(_))
    }

    /// Returns true if the success of this step makes a failure of `failed` good: it is the same
    /// step, in the same or a wider scope, or it cannot succeed while the other fails.
    fn covers(self, failed: WorkStep) -> bool {
        use WorkStep::{Build, Check, Deliver, Format, Lint, Test};
        match (self, failed) {
            (Test(_) | Lint | Check, Build) | (Test(TestScope::All), Test(_)) => true,
            (Test(_) | Check, Test(TestScope::Unit)) | (Test(_), Check) | (Lint, Format) => true,
            // Work with conflicts left in it passes no tests.
            (Test(_), Deliver(verb)) => MERGES.contains(&verb),
            (Deliver(done), Deliver(verb)) => done == verb || FOLLOW_UPS.contains(&(verb, done)),
            (done, failed) => done == failed,
        }
    }
}

/// Commands of git that may leave conflicts to resolve.
const MERGES: [&str; 6] = ["am", "cherry-pick", "merge", "rebase", "revert", "stash pop"];
/// Deliveries that succeed only after another one was made good, in pairs of the failed one and the
/// later one.
const FOLLOW_UPS: [(&str, &str); 7] = [
    ("merge", "commit"),
    ("rebase", "push"),
    ("cherry-pick", "commit"),
    ("pull", "rebase"),
    ("pull", "merge"),
    ("pull", "push"),
    ("stash pop", "commit"),
];

/// Programs and commands of programs that only look, or whose failure leaves nothing undone.
const LOOKS: [&str; 46] = [
    "awk", "basename", "cat", "cd", "curl", "cut", "date", "df", "diff", "dirname", "du", "echo",
    "env", "export", "false", "file", "find", "fd", "grep", "head", "jq", "kill", "less", "ls",
    "mkdir", "more", "pkill", "printf", "ps", "pwd", "rg", "rm", "sed", "sleep", "sort", "stat",
    "tail", "test", "tree", "true", "type", "uniq", "wait", "wc", "which", "[",
];
/// Commands of git that change something whose loss or absence matters.
const GIT_DELIVERIES: [&str; 8] =
    ["am", "cherry-pick", "commit", "merge", "pull", "push", "rebase", "revert"];
/// Stems of words for a delivery by another program than git.
const DELIVERY_STEMS: [(&str, &str); 6] = [
    ("deploy", "deploy"),
    ("publish", "publish"),
    ("releas", "release"),
    ("migrat", "migrate"),
    ("instal", "install"),
    ("upload", "upload"),
];
/// Programs that check, and whose names hold none of the general words.
const PROGRAMS: &str = include_str!("work_programs.txt");
/// Programs that the user of this process names, each with its kind.
static OWN_PROGRAMS: OnceLock<HashMap<String, String>> = OnceLock::new();
/// Kinds of programs in a list of them. A program of the kind `none` checks nothing, whatever its
/// name says.
const PROGRAM_KINDS: [&str; 6] = ["test", "lint", "format", "build", "check", "none"];

/// Adds programs to the ones that are known to check something, one to a line: `test mytool`. Empty
/// lines and the ones that begin with `#` mean nothing. Only the first call has an effect.
///
/// # Errors
/// A sentence that names the first line of another form.
pub fn add_programs(list: &str) -> Result<(), String> {
    let lines = list.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let programs = lines.map(|(number, line)| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [kind, name] if PROGRAM_KINDS.contains(kind) => {
                Ok((name.to_lowercase(), (*kind).to_owned()))
            }
            _ => {
                let kinds = PROGRAM_KINDS.join(", ");
                Err(format!("line {number} is not a kind and a program; kinds are {kinds}"))
            }
        }
    });
    let programs = programs.collect::<Result<HashMap<String, String>, String>>()?;
    OWN_PROGRAMS.get_or_init(|| programs);
    Ok(())
}

/// Returns the kind that the user gave a program.
fn own_kind(program: &str) -> Option<&'static str> {
    OWN_PROGRAMS.get()?.get(&program.to_lowercase()).map(String::as_str)
}

/// Words that end like a check but are none.
const NO_CHECKS: [&str; 5] = ["latest", "checkout", "contest", "attest", "rebuild"];

/// Returns the steps of a line of commands for a shell.
fn steps_of_line(line: &str) -> BTreeSet<WorkStep> {
    split(line).iter().flat_map(|words| steps_of_command(words)).collect()
}

fn steps_of_command(words: &[String]) -> BTreeSet<WorkStep> {
    let mut named = action_words(words);
    let program = named.next().unwrap_or_default();
    let rest: Vec<&str> = named.collect();
    let mut found = BTreeSet::new();
    let mut own = std::iter::once(&program).chain(&rest).map(|word| own_kind(word));
    if let Some(kind) = own.find_map(|kind| kind) {
        found.extend(step_of_kind(kind, test_scope(words)));
        return found;
    }
    if LOOKS.contains(&program) {
        return found;
    }
    if program == "git" {
        found.extend(git_step(&rest));
        return found;
    }
    if program == "gh" || program == "glab" {
        found.extend(forge_step(&rest));
        return found;
    }
    let parts: Vec<String> = std::iter::once(program)
        .chain(rest)
        .flat_map(|word| word.split(|c: char| !c.is_alphanumeric()))
        .map(str::to_lowercase)
        .collect();
    let scope = test_scope(words);
    for part in parts.iter().filter(|part| !NO_CHECKS.contains(&part.as_str())) {
        found.extend(step_of_word(part, scope));
    }
    // A general word says less than the others: `ruff check`, `test-build.sh`.
    if found.len() > 1 {
        found.remove(&WorkStep::Check);
    }
    if found.iter().any(|step| matches!(step, WorkStep::Test(_))) {
        found.remove(&WorkStep::Build);
    }
    found
}

/// Returns the words at the start of a command that name its action, without options. A path counts
/// only in the place of the program or its script, by its last name.
fn action_words(words: &[String]) -> impl Iterator<Item = &str> {
    let words = words.iter().map(String::as_str);
    let words = words.skip_while(|word| is_assignment(word)).filter(|word| !word.starts_with('-'));
    words.take(COMMAND_WORDS).enumerate().filter_map(|(at, word)| {
        let is_path = word.contains(['/', '.']);
        // A project's own script is run by a relative path.
        let is_elsewhere = word.starts_with('/') && !word.contains("/bin/");
        let is_value = word.contains(['=', '$', '>', '<']) || word.contains(char::is_whitespace);
        let is_value = is_value || is_elsewhere;
        let name = word.rsplit('/').next().filter(|_| !is_value)?;
        // A second word without an extension is more often a directory than a script.
        let is_named = match at {
            0 => true,
            1 => !is_path || name.contains('.'),
            _ => !is_path,
        };
        is_named.then_some(name)
    })
}

fn git_step(rest: &[&str]) -> Option<WorkStep> {
    // `git -C DIR commit`: the directory is a value of an option.
    let mut words = rest.iter().copied();
    let verb = words.find(|word| *word == "stash" || GIT_DELIVERIES.contains(word))?;
    if verb == "stash" {
        let restores = words.next().is_some_and(|word| matches!(word, "pop" | "apply"));
        return restores.then_some(WorkStep::Deliver("stash pop"));
    }
    GIT_DELIVERIES.into_iter().find(|known| *known == verb).map(WorkStep::Deliver)
}

fn forge_step(rest: &[&str]) -> Option<WorkStep> {
    match rest {
        [_, "checks", ..] | ["run" | "ci" | "pipeline", "watch" | "list" | "status", ..] => {
            Some(WorkStep::CiState)
        }
        ["pr" | "mr", "create", ..] => Some(WorkStep::Deliver("open a request")),
        ["pr" | "mr", "merge", ..] => Some(WorkStep::Deliver("merge a request")),
        ["release", "create" | "upload", ..] => Some(WorkStep::Deliver("release")),
        _ => None,
    }
}

/// Returns the step that a program of a listed kind takes.
fn step_of_kind(kind: &str, scope: TestScope) -> Option<WorkStep> {
    match kind {
        "test" => Some(WorkStep::Test(scope)),
        "lint" => Some(WorkStep::Lint),
        "format" => Some(WorkStep::Format),
        "build" => Some(WorkStep::Build),
        "check" => Some(WorkStep::Check),
        _ => None,
    }
}

fn step_of_word(word: &str, scope: TestScope) -> Option<WorkStep> {
    let singular = word.strip_suffix('s').unwrap_or(word);
    let known = PROGRAMS.lines().filter_map(|line| line.split_once(' '));
    let listed = known.into_iter().find_map(|(kind, name)| (name == word).then_some(kind));
    if let Some(step) = listed.and_then(|kind| step_of_kind(kind, scope)) {
        Some(step)
    } else if singular.ends_with("test") || matches!(singular, "testing" | "spec" | "e2e") {
        Some(WorkStep::Test(scope))
    } else if word == "ci" {
        Some(WorkStep::Test(TestScope::All))
    } else if singular.ends_with("lint") || matches!(word, "linter" | "linting") {
        Some(WorkStep::Lint)
    } else if matches!(singular, "fmt" | "format") || word.ends_with("fmt") {
        Some(WorkStep::Format)
    } else if singular.ends_with("build") || matches!(word, "compile" | "building") {
        Some(WorkStep::Build)
    } else if singular.ends_with("check") || matches!(word, "verify" | "validate" | "typecheck") {
        Some(WorkStep::Check)
    } else {
        let mut stems = DELIVERY_STEMS.iter().filter(|(stem, _)| word.starts_with(stem));
        stems.next().map(|(_, verb)| WorkStep::Deliver(verb))
    }
}

fn test_scope(words: &[String]) -> TestScope {
    let parts = words.iter().skip_while(|word| is_assignment(word));
    let parts = parts.filter(|word| !word.contains(char::is_whitespace));
    let parts = parts.flat_map(|word| word.split(|c: char| !c.is_alphanumeric()));
    let scopes = parts.filter_map(|part| match part.to_lowercase().as_str() {
        "ci" | "all" => Some(TestScope::All),
        "integration" => Some(TestScope::Integration),
        "e2e" | "acceptance" | "playwright" | "cypress" => Some(TestScope::EndToEnd),
        _ => None,
    });
    scopes.max().unwrap_or(TestScope::Unit)
}

/// Words in the names of tools, by the purpose of such tools.
const TOOL_WORDS: [(CallKind, &[&str]); 5] = [
    (CallKind::Edit, &["edit", "write", "create", "patch", "replace", "update", "todo", "insert"]),
    (
        CallKind::Look,
        &[
            "read",
            "grep",
            "glob",
            "search",
            "list",
            "ls",
            "fetch",
            "find",
            "view",
            "get",
            "cat",
            "open",
            "browse",
            "browser",
            "query",
            "lookup",
            "web",
            "screenshot",
            "output",
            "skill",
        ],
    ),
    (CallKind::Delegate, &["task", "agent", "agents", "subagent", "delegate", "spawn"]),
    (CallKind::Ask, &["ask", "question", "plan", "approval", "permission"]),
    (CallKind::Check, &["test", "tests", "lint", "check", "verify", "build"]),
];

impl ToolCall {
    /// Returns the steps of the work that the call takes.
    pub fn steps(&self) -> BTreeSet<WorkStep> {
        match self.subject().filter(|_| self.is_command) {
            Some(line) => steps_of_line(line),
            None => tool_words(&self.tool)
                .iter()
                .filter(|_| self.files.is_empty())
                .filter_map(|word| step_of_word(word, TestScope::Unit))
                .collect(),
        }
    }

    pub fn kind(&self) -> CallKind {
        if self.is_command {
            return match self.subject() {
                Some(line) if steps_of_line(line).iter().any(|step| step.is_check()) => {
                    CallKind::Check
                }
                Some(line) if looks_only(line) => CallKind::Look,
                _ => CallKind::Command,
            };
        }
        if self.files.iter().any(|file| file.kind != AccessKind::Read) {
            return CallKind::Edit;
        }
        if !self.files.is_empty() {
            return CallKind::Look;
        }
        CallKind::of_tool(&self.tool)
    }
}

impl CallKind {
    /// Returns the kind of a tool's calls by its name alone.
    pub fn of_tool(tool: &str) -> CallKind {
        let words = tool_words(tool);
        TOOL_WORDS
            .iter()
            .find(|(_, known)| words.iter().any(|word| known.contains(&word.as_str())))
            .map_or(CallKind::Command, |(kind, _)| *kind)
    }
}

/// Returns true if no command of the line does more than look at something.
fn looks_only(line: &str) -> bool {
    let commands = split(line);
    let mut programs = commands.iter().map(|words| {
        let mut named = action_words(words);
        (named.next().unwrap_or_default().to_owned(), named.next().unwrap_or_default().to_owned())
    });
    programs.all(|(program, verb)| {
        LOOKS.contains(&program.as_str())
            || program == "gh"
            || program == "git" && !GIT_DELIVERIES.contains(&verb.as_str()) && verb != "stash"
    })
}

/// Returns the words in the name of a tool: `read_file`, `readFile` and `ReadFile` are `read` and
/// `file`.
fn tool_words(tool: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in tool.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() && was_lower {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words
}

/// The steps that succeeded after a place in the record.
#[derive(Default)]
pub(super) struct DoneSteps {
    done: BTreeSet<WorkStep>,
}

impl DoneSteps {
    pub(super) fn add(&mut self, call: &ToolCall) {
        if !call.proves_nothing() {
            self.done.extend(call.steps());
        }
    }

    /// Returns true if later steps made each of the failed `steps` good. The state of checks that
    /// run elsewhere matters only to a worker that has published something since. A call with a
    /// check and a delivery failed because of the check.
    pub(super) fn cover(&self, steps: &BTreeSet<WorkStep>) -> bool {
        use TestScope::{All, Integration, Unit};
        let has_check = steps.iter().any(|step| step.is_check());
        let mut failed = steps.iter().filter(|step| step.is_check() == has_check);
        failed.all(|failed| {
            self.done.iter().any(|done| done.covers(*failed))
                || match failed {
                    // The parts of the whole were green one by one.
                    WorkStep::Test(All) => [Unit, Integration]
                        .into_iter()
                        .all(|scope| self.done.contains(&WorkStep::Test(scope))),
                    WorkStep::CiState => !self.done.contains(&WorkStep::Deliver("push")),
                    _ => false,
                }
        })
    }
}

impl ToolCall {
    /// Returns true if the success of a command shows nothing: its output went through a filter
    /// that let nothing pass.
    fn proves_nothing(&self) -> bool {
        let filters = ["| grep", "| rg", "| egrep"];
        self.bytes == 0
            && self.is_command
            && self.subject().is_some_and(|line| filters.iter().any(|pipe| line.contains(pipe)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WorkStep::{Build, Check, CiState, Deliver, Format, Lint, Test};

    fn steps(line: &str) -> Vec<WorkStep> {
        steps_of_line(line).into_iter().collect()
    }

    #[test]
    fn steps_of_a_command_follow_from_its_words() {
        use TestScope::{All, EndToEnd, Integration, Unit};
        for (line, expected) in [
            ("go test ./... 2>&1 | tail -20", vec![Test(Unit)]),
            ("cd a && CI=1 mise run test:integration -- -run X", vec![Test(Integration)]),
            ("mise run test:ci", vec![Test(All)]),
            ("npm run e2e", vec![Test(EndToEnd)]),
            ("python3 tests/test_parser.py", vec![Test(Unit)]),
            ("./scripts/test-build.sh", vec![Test(Unit)]),
            ("mise run fmt && mise run lint", vec![Lint, Format]),
            ("npx tsc --noEmit", vec![Lint]),
            ("cargo check", vec![Check]),
            ("cargo clippy -- -D warnings", vec![Lint]),
            ("ruff check .", vec![Lint]),
            ("go build ./...", vec![Build]),
            ("make", vec![Build]),
            ("gh pr checks 12", vec![CiState]),
            ("git -C /a commit -m 'run the tests'", vec![Deliver("commit")]),
            ("git stash && git stash pop", vec![Deliver("stash pop")]),
            ("npm install", vec![Deliver("install")]),
            ("git checkout test-branch", vec![]),
            ("grep -r test src", vec![]),
            ("echo build; rm -rf test", vec![]),
            ("pip install foo@latest", vec![Deliver("install")]),
        ] {
            assert_eq!(steps(line), expected, "{line}");
        }
    }

    #[test]
    fn a_wider_check_covers_a_narrower_one() {
        use TestScope::{All, Integration, Unit};
        assert!(Test(All).covers(Test(Integration)));
        assert!(Test(Integration).covers(Test(Unit)));
        assert!(!Test(Unit).covers(Test(Integration)));
        assert!(Test(Unit).covers(Build));
        assert!(!Test(Unit).covers(Lint));
        assert!(Lint.covers(Format));
        assert!(!Format.covers(Lint));
        assert!(Deliver("push").covers(Deliver("rebase")));
        assert!(!Deliver("commit").covers(Deliver("push")));
    }

    #[test]
    fn tools_are_for_what_their_names_say() {
        let kind = |tool: &str| ToolCall::new(1, tool, crate::name::RelPath::root()).kind();
        assert_eq!(kind("WebFetch"), CallKind::Look);
        assert_eq!(kind("read_file"), CallKind::Look);
        assert_eq!(kind("TodoWrite"), CallKind::Edit);
        assert_eq!(kind("run_tests"), CallKind::Check);
        assert_eq!(kind("AskUserQuestion"), CallKind::Ask);
        assert_eq!(kind("deploy"), CallKind::Command);
    }
}
