//! The messages of a conversation that have IDs: records that repeat them, and their tokens.

use std::collections::{HashMap, HashSet};

use super::index::{Conversation, MessageMark, MessageTokens};
use super::turn::Turn;
use swarmletfs_base::digest::digest;
use swarmletfs_base::model::Tokens;

/// Maximum number of messages with IDs that are kept.
const MARKS_MAX: usize = 100_000;
/// Maximum number of models whose tokens are counted separately.
pub(super) const MODELS_MAX: usize = 50;

#[derive(Default)]
pub(super) struct MessageNumbers {
    pub(super) by_id: HashMap<u64, usize>,
    pub(super) counted: HashSet<usize>,
}

impl MessageNumbers {
    pub(super) fn new(conversation: &Conversation) -> MessageNumbers {
        let marks = || conversation.marks.iter().enumerate();
        let counted = marks().filter(|(_, mark)| mark.is_counted);
        MessageNumbers {
            by_id: marks().map(|(at, mark)| (mark.id, at)).collect(),
            counted: counted.map(|(at, _)| at).collect(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    New,
    /// Has the ID of an earlier message, but another text.
    Changed,
    /// Has the ID and the text of an earlier message.
    Same,
}

/// Adds or updates the mark of a message that has an ID. Compares the message with an earlier one
/// of that ID.
pub(super) fn note_message(
    conversation: &mut Conversation,
    messages: &mut MessageNumbers,
    turn: &Turn<'_>,
) -> Repeat {
    if turn.id.is_empty() {
        return Repeat::New;
    }
    let (id, text) = (text_hash(&turn.id), text_hash(&turn.text));
    let known = messages.by_id.get(&id).and_then(|at| conversation.marks.get_mut(*at));
    match known {
        Some(mark) if mark.text == text => Repeat::Same,
        Some(mark) => {
            mark.text = text;
            Repeat::Changed
        }
        None => {
            let at = conversation.marks.len();
            if at < MARKS_MAX {
                messages.by_id.insert(id, at);
                conversation.marks.push(MessageMark {
                    id,
                    text,
                    calls: conversation.calls.len(),
                    requests: conversation.requests.len(),
                    lines: conversation.lines.len(),
                    tokens: None,
                    is_counted: false,
                });
            }
            Repeat::New
        }
    }
}

/// Adds tokens to the counts of a model. Returns the name under which they are counted: it is empty
/// beyond the maximum number of models.
pub(super) fn add_tokens(conversation: &mut Conversation, model: String, tokens: Tokens) -> String {
    let counts = &mut conversation.tokens;
    let is_counted = counts.len() < MODELS_MAX || counts.contains_key(&model);
    let model = if is_counted { model } else { String::new() };
    *counts.entry(model.clone()).or_default() += tokens;
    model
}

/// Counts the tokens of the message with the mark `at`. Returns true if it has any.
pub(super) fn count_mark(conversation: &mut Conversation, at: usize) -> bool {
    let Some(mark) = conversation.marks.get_mut(at) else { return false };
    if mark.is_counted {
        return true;
    }
    let Some(own) = mark.tokens.take() else { return false };
    let MessageTokens { model, tokens } = *own;
    let model = add_tokens(conversation, model, tokens);
    if let Some(mark) = conversation.marks.get_mut(at) {
        mark.tokens = Some(Box::new(MessageTokens { model, tokens }));
        mark.is_counted = true;
    }
    true
}

pub(super) fn take_tokens(conversation: &mut Conversation, at: usize) {
    let Some(mark) = conversation.marks.get_mut(at).filter(|mark| mark.is_counted) else { return };
    mark.is_counted = false;
    let Some(own) = &mark.tokens else { return };
    if let Some(sum) = conversation.tokens.get_mut(&own.model) {
        *sum -= own.tokens;
        if *sum == Tokens::default() {
            conversation.tokens.remove(&own.model);
        }
    }
}

/// Returns a hash that distinguishes a text from a replacement with equal length and time.
pub(super) fn text_hash(text: &str) -> u64 {
    u64::from_le_bytes(digest(blake3::Hasher::new().update(text.as_bytes())))
}
