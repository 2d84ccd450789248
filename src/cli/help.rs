//! The command line as users see it: commands in groups, and options that every command takes, also
//! in front of it.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::{Cli, mount_helper};

/// The commands by what they are for.
const GROUPS: [(&str, &[&str]); 7] = [
    (
        "See what happened",
        &[
            "list", "top", "report", "serve", "show", "log", "diff", "cost", "since", "wait",
            "export",
        ],
    ),
    ("Mount the tree", &["mount", "umount", "attach", "detach"]),
    (
        "Read the tree without a mount",
        &["cat", "ls", "tree", "stat", "grep", "search", "compare", "summarize"],
    ),
    (
        "Run workers, and take over what they changed",
        &["run", "review", "changes", "rebase", "apply", "undo", "discard"],
    ),
    (
        "Record workers",
        &["init", "worker", "record", "note", "flush", "sync", "archive", "gc", "audit", "catalog"],
    ),
    ("Serve agents and their programs", &["mcp", "hook", "expand"]),
    ("Find problems, and set up", &["doctor", "validate", "completions", "man", "help"]),
];

const HELP_COMMAND: &str = "help";
const HELP_ABOUT: &str = "Print this page, or the help of a command";

/// Returns the command line of the program.
pub(super) fn command() -> Command {
    let command = with_quiet(Cli::command());
    let template = format!(
        "{{about}}\n\nUsage: {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        groups(&command)
    );
    command.help_template(template)
}

/// Adds `--quiet` to the commands that have none, so that it can be given to each.
fn with_quiet(command: Command) -> Command {
    command.mut_subcommands(|below| {
        let below = with_quiet(below);
        let has_quiet = below.get_arguments().any(|arg| arg.get_long() == Some("quiet"));
        if has_quiet || below.has_subcommands() {
            return below;
        }
        below.arg(
            Arg::new("quiet")
                .short('q')
                .long("quiet")
                .action(ArgAction::SetTrue)
                .help("Print no messages that only inform; this command has none"),
        )
    })
}

fn groups(command: &Command) -> String {
    let mut out = String::new();
    for (title, names) in GROUPS {
        out.push_str(&format!("{title}:\n"));
        for name in names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                None if *name == HELP_COMMAND => HELP_ABOUT.to_owned(),
                // A feature of the program that was not compiled.
                None => continue,
            };
            out.push_str(&format!("  {name:<12} {about}\n"));
        }
        out.push('\n');
    }
    out
}

/// Moves options in front of a command behind its name, as in `swarmletfs --owner 7 list`, and
/// makes `help COMMAND` of `COMMAND --help`.
pub(super) fn normalize(arguments: Vec<OsString>, command: &Command) -> Vec<OsString> {
    let Some((program, rest)) = arguments.split_first() else { return arguments };
    let named = rest.iter().enumerate().find_map(|(at, word)| {
        let below = command.find_subcommand(word)?;
        let before = rest.get(..=at).filter(|before| !before.iter().any(|word| word == "--"))?;
        let is_first = mount_helper::first_operand(before, below) == Some(word.as_os_str());
        is_first.then_some((at, word))
    });
    if let Some((at, name)) = named {
        let (before, after) = (rest.iter().take(at), rest.iter().skip(at + 1));
        return [program, name].into_iter().chain(before).chain(after).cloned().collect();
    }
    match rest.split_first() {
        // Another path or word is no command, and is refused as one.
        Some((help, names))
            if help == HELP_COMMAND
                && names.first().is_none_or(|name| command.find_subcommand(name).is_some()) =>
        {
            let help = OsStr::new("--help").to_owned();
            [program].into_iter().chain(names).cloned().chain([help]).collect()
        }
        _ => arguments,
    }
}

/// Returns the arguments of this process, without its name: first the command, then its options.
pub(super) fn own_arguments() -> impl Iterator<Item = OsString> {
    normalize(std::env::args_os().collect(), &command()).into_iter().skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = command();
        let mut names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        names.push(HELP_COMMAND);
        names.sort_unstable();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        grouped.sort_unstable();
        if cfg!(feature = "mcp") {
            assert_eq!(grouped, names);
        }
        let help = groups(&command);
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{help}");
    }

    #[test]
    fn options_can_be_in_front_of_the_command() {
        let normal = |typed: &str| {
            let typed = typed.split(' ').map(OsString::from).collect();
            let words = normalize(typed, &command());
            words.join(OsStr::new(" ")).into_string().unwrap()
        };
        for (typed, expected) in [
            ("swarmletfs list --owner 7", "swarmletfs list --owner 7"),
            ("swarmletfs --owner 7 list --json", "swarmletfs list --owner 7 --json"),
            ("swarmletfs -q --store cat ls a", "swarmletfs ls -q --store cat a"),
            ("swarmletfs -q run -- list -l", "swarmletfs run -q -- list -l"),
            // The value of an option, and operands, are no commands.
            ("swarmletfs --owner list /mnt/a", "swarmletfs --owner list /mnt/a"),
            ("swarmletfs --owner 7 /mnt/list", "swarmletfs --owner 7 /mnt/list"),
            ("swarmletfs -- list", "swarmletfs -- list"),
            ("swarmletfs help", "swarmletfs --help"),
            ("swarmletfs help worker create", "swarmletfs worker create --help"),
            ("swarmletfs cat help", "swarmletfs cat help"),
            ("swarmletfs help /mnt/a", "swarmletfs help /mnt/a"),
        ] {
            assert_eq!(normal(typed), expected, "{typed}");
        }
    }

    #[test]
    fn every_command_takes_quiet() {
        let mut commands = vec![command()];
        while let Some(command) = commands.pop() {
            let takes = command.get_arguments().any(|arg| arg.get_short() == Some('q'));
            assert!(takes || command.has_subcommands(), "{}", command.get_name());
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
