//! A conversation of OpenHands with any content is read without an error. The first byte of the
//! input selects the file that the rest is.
#![no_main]

#[path = "../../tests/formats/openhands/reading.rs"]
mod reading;

use libfuzzer_sys::fuzz_target;
use reading::{PLACES, read_all};

fuzz_target!(|input: &[u8]| {
    let Some((place, bytes)) = input.split_first() else { return };
    read_all(PLACES[usize::from(*place) % PLACES.len()], bytes);
});
