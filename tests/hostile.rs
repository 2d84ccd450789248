//! Tests of hostile input that must be harmless: paths, planted links, races, claims of ownership,
//! odd mountpoints.
//!
//! A canary is planted in every forbidden place, and every reply is searched for it. Each attack
//! has a control: in the same harness, a typical resolver must reach the canary, or the test proves
//! nothing.

mod caches;
mod claims;
mod confined;
mod crossings;
mod forgery;
mod hard_links;
mod hidden;
mod huge;
mod links;
mod mountpoints;
mod names;
mod owners;
mod parsers;
mod paths;
mod races;
mod recording;
mod renames;
mod repeated_reads;
mod shared_stores;
pub mod views;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

/// Text that no view may ever show.
pub const CANARY: &str = "canary-5f1d2c9be04a7736";

/// Returns true if a reply contains the canary.
pub fn holds_canary(reply: &[u8]) -> bool {
    memchr::memmem::find(reply, CANARY.as_bytes()).is_some()
}

/// Makes a FIFO. It has no writer, so a careless open hangs.
pub fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

/// Returns everything below a directory without following links: the bytes of files and the targets
/// of links.
pub fn walk(folder: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(inner) = open.pop() {
        for entry in fs::read_dir(&inner).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            if kind.is_dir() {
                open.push(path);
                all.insert(name, Vec::new());
            } else if kind.is_symlink() {
                all.insert(name, fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec());
            } else {
                all.insert(name, fs::read(path).unwrap());
            }
        }
    }
    all
}

/// A deterministic generator of pseudorandom numbers.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns true once in `n` times on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns a random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
