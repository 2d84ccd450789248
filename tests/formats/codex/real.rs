//! Real rollouts of many versions; see [`expected`](crate::formats::expected).

use swarmletfs::trace::Codex;

use crate::formats::expected::{Difference, compare};

#[test]
fn real_rollouts_hold_what_the_table_says() {
    compare("codex", &Codex::transcripts(), &DIFFERENCES);
}

const DIFFERENCES: [Difference; 0] = [];
