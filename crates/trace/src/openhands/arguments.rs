//! The arguments of calls, as they are shown.

use std::borrow::Cow;

use super::super::transcript::Arguments;
use super::schema::EventFields;

/// Arguments that the program adds to every call.
const ADDED_ARGUMENTS: [&str; 9] = [
    "thought",
    "blocking",
    "hidden",
    "is_static",
    "confirmation_state",
    "security_risk",
    "impl_source",
    "translated_ipython_code",
    "kind",
];
/// The tool whose argument is a thought.
pub(super) const THINK: &str = "think";
/// Arguments with values that say nothing.
const DEFAULT_ARGUMENTS: [(&str, &str); 5] =
    [("is_input", "false"), ("reset", "false"), ("start", "0"), ("start", "1"), ("end", "-1")];
/// Tools whose argument `command` is no command for a shell.
const OPERATION_TOOLS: [&str; 6] = [
    "str_replace_editor",
    "file_editor",
    "planning_file_editor",
    "edit_file",
    "edit",
    "task_tracker",
];
/// The name under which the argument `command` of these tools is shown.
pub(super) const OPERATION: &str = "operation";

/// Returns the arguments of a call of `tool` without those that the program adds.
pub(super) fn call_arguments<'a>(tool: &str, fields: &EventFields<'_>) -> Arguments<'a> {
    let mut json = String::from("{");
    for (name, value) in &fields.0 {
        let value = value.get();
        let is_default = DEFAULT_ARGUMENTS.contains(&(name, value));
        let is_argument = name == "thought" && tool == THINK;
        let is_added = ADDED_ARGUMENTS.contains(&&**name) && !is_argument;
        if is_added || is_default || value == "null" {
            continue;
        }
        let is_operation = name == "command" && OPERATION_TOOLS.contains(&tool);
        let name = if is_operation { OPERATION } else { name };
        let Ok(name) = serde_json::to_string(name) else { continue };
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&name);
        json.push(':');
        json.push_str(value);
    }
    json.push('}');
    Arguments::Text(Cow::Owned(json))
}
