//! A session of Gemini CLI with any bytes is read without a failure, as a log and as a document,
//! and the stated size of a file is that of its content.
#![no_main]

mod session;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    for name in ["session-x.jsonl", "session-x.json"] {
        session::read_session("gemini-cli", &format!("app/chats/{name}"), input);
    }
});
