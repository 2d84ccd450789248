//! commands.txt: what each call was called with, one line for each line of its main argument, after
//! the number of the call. So `grep` finds who ran a command.

use std::collections::{HashMap, VecDeque};

use super::calls::{main_argument, shorten_id};
use super::index::Conversation;
use super::turn::{Span, Turn};
use swarmletfs_base::digest::digest;
use swarmletfs_base::split::Split;
use swarmletfs_base::text::clean::{cleaned, escape_markers};

/// Maximum length of a main argument, in bytes; the rest is left out.
const TEXT_MAX: usize = 16 << 10;
/// Total length of all main arguments from which on further ones are left out, in bytes.
const TOTAL_MAX: u64 = 16 << 20;

/// The ID and the main argument of a call, as its record has them.
pub(super) type CalledWith = (String, Option<String>);

/// Formats the main argument of the call `number`.
fn section(number: usize, text: &str) -> String {
    let (shown, rest) = text.split_at_most(TEXT_MAX);
    let text = escape_markers(&cleaned(shown.as_bytes()).text);
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        out.push_str(&format!("{number}\t{line}\n"));
    }
    if !rest.is_empty() {
        out.push_str(&format!("{number}\t[cut: {} B in all]\n", shown.len() + rest.len()));
    }
    out
}

/// Returns the calls in the record of `turns`.
pub(super) fn called_with(turns: &[Turn<'_>]) -> Vec<CalledWith> {
    let calls = turns.iter().flat_map(|turn| &turn.calls);
    calls.map(|call| (shorten_id(&call.id), main_argument(&call.arguments))).collect()
}

impl Conversation {
    /// Returns the length in commands.txt of the main argument of the next call, in bytes.
    pub(super) fn add_command(&mut self, text: Option<&str>) -> u64 {
        let section = text.map(|text| section(self.calls.len() + 1, text));
        let bytes = section.map_or(0, |section| section.len() as u64);
        if self.commands_total + bytes > TOTAL_MAX {
            return 0;
        }
        self.commands_total += bytes;
        bytes
    }

    /// Returns the size of commands.txt in bytes; 0 if there is none.
    pub(super) fn commands_size(&self) -> u64 {
        self.calls.iter().map(|call| call.command_bytes).sum()
    }

    pub(super) fn commands_version(&self) -> u64 {
        let mut hash = blake3::Hasher::new();
        for call in &self.calls {
            hash.update(&call.span.offset.to_le_bytes()).update(&call.command_bytes.to_le_bytes());
        }
        u64::from_le_bytes(digest(&hash))
    }

    /// Returns the content of commands.txt. `read` returns the calls in the record at a span.
    ///
    /// # Errors
    ///
    /// Returns the errors of `read`.
    pub(super) fn render_commands<E>(
        &self,
        read: impl Fn(Span) -> Result<Vec<CalledWith>, E>,
    ) -> Result<Vec<u8>, E> {
        let mut out = String::new();
        let mut number = 0;
        for calls in self.calls.chunk_by(|a, b| a.span == b.span) {
            let first = calls.first().filter(|_| calls.iter().any(|call| call.command_bytes > 0));
            let mut called: HashMap<String, VecDeque<Option<String>>> = HashMap::new();
            for (id, text) in first.map_or(Ok(Vec::new()), |first| read(first.span))? {
                called.entry(id).or_default().push_back(text);
            }
            for call in calls {
                number += 1;
                let text = called.get_mut(&call.id).and_then(VecDeque::pop_front).flatten();
                if let Some(text) = text.filter(|_| call.command_bytes > 0) {
                    out.push_str(&section(number, &text));
                }
            }
        }
        Ok(out.into_bytes())
    }
}
