//! Completions of values from the store in fish, which declares each argument.

use clap::Command;

use super::cursor::StoreValueKind;

/// Function that prints the values.
const FUNCTION: &str = include_str!("store.fish");

/// Returns the declarations for all arguments whose values a store has.
pub(super) fn store_values(command: &Command) -> String {
    let mut script = FUNCTION.to_owned();
    for command in command.get_subcommands() {
        let using = format!("__fish_swarmletfs_using_subcommand {}", names(command));
        script.extend(declarations(command, &[command.get_name()], &using));
        for inner in command.get_subcommands() {
            let seen = format!("{using}; and __fish_seen_subcommand_from {}", names(inner));
            script.extend(declarations(inner, &[command.get_name(), inner.get_name()], &seen));
        }
    }
    script
}

/// Returns the name of a command and its other names.
fn names(command: &Command) -> String {
    let names: Vec<&str> =
        [command.get_name()].into_iter().chain(command.get_all_aliases()).collect();
    names.join(" ")
}

fn declarations(command: &Command, path: &[&str], condition: &str) -> Vec<String> {
    let has_store_values = |id: &str| StoreValueKind::of_argument(path, id).is_some();
    let arguments = command.get_arguments();
    let found = arguments.filter(|argument| has_store_values(argument.get_id().as_str()));
    let lines = found.map(|argument| {
        // After the worker, `changes` and `apply` take files.
        let takes_files = command.get_positionals().any(|other| {
            let is_path = other.get_value_names().is_some_and(|names| names == ["PATH"]);
            is_path && !has_store_values(other.get_id().as_str())
        });
        let option = match argument.get_long() {
            Some(long) => format!(" -l {long} -r -f"),
            None => String::from(if takes_files { "" } else { " -f" }),
        };
        format!(
            "complete -c swarmletfs -n \"{condition}\"{option} -a \"(__fish_swarmletfs_store)\"\n"
        )
    });
    lines.collect()
}
