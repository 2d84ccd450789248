//! The arguments of a call as one readable line.

use std::ops::Range;

use serde_json::Value;

use super::value::truncate;

/// Maximum length of an input, in bytes.
pub const INPUT_MAX: usize = 2_000;
/// Total size of a file's inputs from which on further ones are truncated, in bytes.
pub const INPUTS_TOTAL_MAX: usize = 4 << 20;
/// Maximum length of an input once the total is reached, in bytes.
const SHORT_INPUT_MAX: usize = 120;

/// Total size of the inputs kept from one file, in bytes.
#[derive(Debug, Default)]
pub(super) struct InputBudget(pub(super) usize);

impl InputBudget {
    /// Truncates one more input if the budget is spent, and counts it.
    pub(super) fn truncate_input(&mut self, line: String) -> String {
        let input = if self.0 < INPUTS_TOTAL_MAX { line } else { truncate(line, SHORT_INPUT_MAX) };
        self.0 += input.len();
        input
    }

    pub(super) fn truncate_line(&mut self, input: InputLine) -> InputLine {
        let InputLine { line, command } = input;
        let line = self.truncate_input(line);
        let command = command.start.min(line.len())..command.end.min(line.len());
        InputLine { line, command }
    }
}

/// Names of the argument that holds a command for a shell.
pub(super) const COMMAND_ARGUMENTS: [&str; 2] = ["command", "cmd"];

/// The arguments of a call as one line, as [`one_line`] formats them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InputLine {
    pub(super) line: String,
    /// Part of the line that holds a command for a shell, in bytes; empty without one.
    pub(super) command: Range<usize>,
}

impl InputLine {
    /// Formats the arguments of a call. Returns `None` if there are none.
    pub(super) fn new(arguments: &Value) -> Option<InputLine> {
        let inner = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        let fields = inner.as_ref().unwrap_or(arguments).as_object();
        let line = one_line(arguments)?;
        let command = fields.and_then(|fields| {
            let (name, value) =
                fields.iter().find(|(name, _)| COMMAND_ARGUMENTS.contains(&name.as_str()))?;
            let command = one_line(&Value::String(value.as_str()?.to_owned()))?;
            let start = match fields.len() {
                1 => 0,
                _ => line.find(&format!("{name}={command}"))? + name.len() + 1,
            };
            Some(start..line.len().min(start + command.len()))
        });
        Some(InputLine { line, command: command.unwrap_or_default() })
    }
}

/// Formats the arguments of a call as one line: a single argument as its value, several as
/// `name=value`.
pub(super) fn one_line(arguments: &Value) -> Option<String> {
    let line = match arguments {
        Value::Null => return None,
        // Some programs write the arguments as a string that holds JSON.
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ Value::Object(_)) => return one_line(&inner),
            _ => text.clone(),
        },
        Value::Object(fields) if fields.len() == 1 => {
            fields.values().next().map(value_text).unwrap_or_default()
        }
        Value::Object(fields) => {
            let parts: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", value_text(value)))
                .collect();
            parts.join(" ")
        }
        other => other.to_string(),
    };
    // Invisible characters stay: they are counted where the line is shown.
    let line =
        line.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = truncate(line.collect::<Vec<_>>().join(" "), INPUT_MAX);
    (!line.is_empty()).then_some(line)
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the form in which tool names are compared. File names may have replaced characters of
/// the tool's name.
pub(super) fn tool_key(tool: &str) -> String {
    tool.chars()
        .map(|c| if c.is_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inputs_are_one_line() {
        assert_eq!(one_line(&json!({"command": "df -h\n  /"})), Some("df -h /".into()));
        assert_eq!(
            one_line(&json!({"host": "a", "command": "docker ps"})),
            Some("host=a command=docker ps".into())
        );
        assert_eq!(one_line(&json!("{\"command\": \"ls\"}")), Some("ls".into()));
        assert_eq!(one_line(&json!({})), None);
        for (arguments, command) in [
            (json!({"command": "df  -h"}), "df -h"),
            (json!({"host": "a", "command": "docker\nps"}), "docker ps"),
            (json!("{\"cmd\": \"ls\"}"), "ls"),
            (json!({"host": "a"}), ""),
            (json!({"command": ["ls"]}), ""),
        ] {
            let input = InputLine::new(&arguments).unwrap();
            assert_eq!(input.line.get(input.command), Some(command), "{arguments}");
        }
        assert_eq!(one_line(&json!({"a": "\u{1b}[31m"})), Some("[31m".into()));
        assert!(one_line(&json!("x".repeat(9_000))).unwrap().len() <= INPUT_MAX);
    }
}
