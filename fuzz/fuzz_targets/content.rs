//! Whatever a worker wrote, its pages are made in time proportional to that: 50 ms for each 64 KiB, and what empty ones
//! take. The first byte says in which way the rest reaches a parser.
#![no_main]

#[path = "../../tests/support/content.rs"]
mod content;

use content::{WAYS, allowed, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: &[u8]| {
    let Some((way, text)) = given.split_first() else { return };
    let way = WAYS[usize::from(*way) % WAYS.len()];
    for (page, took) in read(way, text) {
        assert!(took <= allowed(text.len()), "{page} took {took:?} for {} bytes as {way:?}", text.len());
    }
});
