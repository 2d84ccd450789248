//! Completions of values from the store in nushell, whose script declares a type for each argument.

use clap::{Arg, Command};

use super::cursor::StoreValueKind;

/// Function that prints the values.
const FUNCTION: &str = include_str!("store.nu");

/// The type of an argument whose values a store has.
const STORE_TYPE: &str = ": string@\"nu-complete swarmletfs store\"";

/// Returns a script of nushell in which such arguments have a type of their own.
pub(super) fn with_store_values(script: &str, command: &Command) -> String {
    let (mut out, mut names): (String, Vec<String>) = Default::default();
    for line in script.lines() {
        if let Some(path) = line.trim_start().strip_prefix("export extern ") {
            let path = path.split('"').nth(1).unwrap_or(path).trim_end_matches(" [");
            names = declared_names(command, path.split(' ').skip(1).collect());
        }
        let declared = names.iter().find_map(|name| {
            let rest = line.trim_start().strip_prefix(name.as_str())?.strip_prefix(": ")?;
            let indent = line.len() - line.trim_start().len();
            let comment = rest.find('#').map_or("", |start| rest.split_at(start).1);
            Some(format!("{:indent$}{name}{STORE_TYPE} {comment}", ""))
        });
        out += declared.as_deref().unwrap_or(line).trim_end();
        out.push('\n');
        if line == "module completions {" {
            out += FUNCTION;
        }
    }
    out
}

/// Returns the names that the script gives to the arguments of a command whose values a store has.
fn declared_names(command: &Command, path: Vec<&str>) -> Vec<String> {
    let found = path.iter().try_fold(command, |command, name| command.find_subcommand(name));
    let arguments = found.into_iter().flat_map(Command::get_arguments);
    let from_store = arguments.filter(|argument| {
        StoreValueKind::of_argument(&path, argument.get_id().as_str()).is_some()
    });
    from_store.flat_map(spellings).collect()
}

/// Returns the ways in which a script can name an argument.
fn spellings(argument: &Arg) -> Vec<String> {
    let id = argument.get_id();
    match argument.get_long() {
        Some(long) => vec![format!("--{long}")],
        None => vec![id.to_string(), format!("{id}?"), format!("...{id}")],
    }
}
