//! Rendering takes time in proportion to the worker's content: 50 ms for each 64 KiB, plus the time
//! for empty pages. The first byte of the input selects how the rest reaches a parser.
#![no_main]

#[path = "../../tests/support/content.rs"]
mod content;

use content::{WAYS, allowed, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((way, text)) = input.split_first() else { return };
    let way = WAYS[usize::from(*way) % WAYS.len()];
    for (page, took) in read(way, text) {
        assert!(took <= allowed(text.len()), "{page}: {took:?} for {} bytes as {way:?}", text.len());
    }
});
