//! Sessions of the programs with small readers, with any bytes, are read without a failure, and
//! the stated size of a file is that of its content.
#![no_main]

mod session;

use libfuzzer_sys::fuzz_target;

/// The formats, each with the path of a session.
const FORMATS: [(&str, &str); 8] = [
    ("atif", "t.json"),
    ("cline", "s/s.messages.json"),
    ("cline", "s/api_conversation_history.json"),
    ("copilot-cli", "session-state/s/events.jsonl"),
    ("cursor", "s/s.jsonl"),
    ("droid", "s/s.jsonl"),
    ("pi", "s/s.jsonl"),
    ("qwen-code", "p/chats/s.jsonl"),
];

fuzz_target!(|input: &[u8]| {
    FORMATS.iter().for_each(|(name, path)| session::read_session(name, path, input));
});
