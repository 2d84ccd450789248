//! A cut output shows the cleaned bytes on disk outside its omissions, and every omission is
//! marked.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::support::cases;

/// Returns the expected text of `file[range]`: overwritten progress states, colors and control
/// characters removed, markers escaped, with a final line end.
///
/// This is an independent implementation of the rules for text made of the parts below.
fn shown(file: &[u8], (start, end): (u64, u64)) -> String {
    let kept = kept(file);
    let (start, end) = (start as usize, end as usize);
    let bytes: Vec<u8> = (start..end).filter(|at| kept[*at]).map(|at| file[at]).collect();
    let text = String::from_utf8(bytes).expect("a cut fell inside a character");
    let text = COLOUR.replace_all(&text, "");
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let (body, line_end) = match (line.strip_suffix("\r\n"), line.strip_suffix('\n')) {
            (Some(body), _) => (body, "\r\n"),
            (None, Some(body)) => (body, "\n"),
            (None, None) => (line, ""),
        };
        let body: String = body.chars().filter(|c| *c == '\t' || !c.is_control()).collect();
        let body = body.strip_prefix("[...").map_or(body.clone(), |rest| format!("[\\...{rest}"));
        out.push_str(&MARKER.replace_all(&body, "[\\$1"));
        out.push_str(line_end);
    }
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// Returns for each byte true if nothing on its line overwrites it.
fn kept(file: &[u8]) -> Vec<bool> {
    let mut kept = vec![true; file.len()];
    let mut begin = 0;
    for at in 0..file.len() {
        match file[at] {
            b'\n' => begin = at + 1,
            b'\r' if file.get(at + 1).is_some_and(|next| *next != b'\n' && *next != b'\r') => {
                kept[begin..=at].fill(false);
                begin = at + 1;
            }
            _ => {}
        }
    }
    kept
}

static COLOUR: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\x1b\[[0-9;]*m").unwrap());
static MARKER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)\[(EVIDENCE:|TOOL_OUTPUT:)").unwrap());

/// Checks a section against the bytes of its file on disk.
fn hold_against(section: &Section, file: &[u8]) {
    assert_eq!(section.bytes, file.len() as u64);
    let omissions = section.omissions();
    if section.is_whole() {
        assert_eq!(section.body, shown(file, (0, section.bytes)), "shown whole");
        return;
    }
    let mut parts: Vec<((u64, u64), bool)> =
        section.shown().into_iter().map(|range| (range, true)).collect();
    parts.extend(omissions.iter().map(|range| (*range, false)));
    parts.sort_unstable();
    let mut expected = String::new();
    for ((start, end), is_shown) in parts {
        if is_shown {
            expected.push_str(&shown(file, (start, end)));
        } else {
            expected.push_str(&format!(
                "[... {} B omitted: bytes {start}-{} ...]\n",
                end - start,
                end - 1
            ));
        }
    }
    assert_eq!(every_time(&section.body), expected, "{omissions:?}");
}

/// Returns the text with every repeat of a line written out.
fn every_time(body: &str) -> String {
    let mut text = String::new();
    let mut last = "";
    for line in body.split_inclusive('\n') {
        let more =
            line.strip_prefix(REPEATS).and_then(|rest| rest.strip_suffix(" times more ...]\n"));
        match more.and_then(|more| more.parse().ok()) {
            Some(more) => text.push_str(&last.repeat(more)),
            None => {
                text.push_str(line);
                last = line;
            }
        }
    }
    text
}

fn hold_store_against(store: &TestStore, tree: &Tree, budget: usize) -> Option<Report> {
    let report = hold(&evidence(tree, "workers/w/", budget), budget)?;
    for section in &report.sections {
        hold_against(
            section,
            &std::fs::read(store.at(format!("workers/w/{}", section.path))).unwrap(),
        );
    }
    Some(report)
}

fn output() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => "[a-z0-9 .:/é漢😀-]{0,80}\n",
        1 => select(vec![
            "Error: it failed\n", "\tindented\r\n", "\x1b[1;31mred\x1b[0m text\n", "bell\x07 and \x01 more\n",
            "see [EVIDENCE:run_id=1,job_id=2,worker_id=3]\n", "[tool_output:artifact_id=x\n",
            "[... 5 B omitted: bytes 0-4 ...]\n", "\n 1%\r 50%\r100% done\n", "\n\n\n",
            "written out\\nline\\nends\\n", "a\u{85}b\u{9b}c\n", "[EVI\x07DENCE:run_id=1\n",
        ]).prop_map(str::to_owned),
        1 => "[a-zé漢]{500,1500}",
        1 => ("[a-z%]{1,40}(\r)?\n", 2_usize..60).prop_map(|(line, times)| line.repeat(times)),
        1 => "(warning: x|ok) [a-z]{1,30}\r\n",
    ];
    proptest::collection::vec(piece, 0..120).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(cases(60))]

    /// Promise: The shown text is on disk at the stated offsets.
    #[test]
    fn shown_text_is_on_disk_at_the_stated_offsets(
        outputs in proptest::collection::vec(output(), 1..5), budgets in proptest::collection::vec(300_usize..9_000, 6),
    ) {
        let store = worker_with(&outputs);
        let tree = store.tree();
        for budget in budgets {
            hold_store_against(&store, &tree, budget);
        }
    }
}

#[test]
fn large_output_is_cut_at_the_right_offsets() {
    for (name, line) in [
        ("lines", "an ordinary line 漢 of output\n".to_owned()),
        ("coloured", "\x1b[32man ordinary\x1b[0m line\r\n".to_owned()),
        ("one line", "漢é😀 ".to_owned()),
        ("long lines", format!("{}\n", "é漢".repeat(3_000))),
    ] {
        let half = 3_000_000 / line.len();
        let output =
            format!("{}\nError: it broke in the middle\n{}", line.repeat(half), line.repeat(half));
        let store = worker_with([output.as_str(), "small"]);
        let tree = store.tree();
        for budget in [2_000, 16_000] {
            let report = hold_store_against(&store, &tree, budget).unwrap();
            let large = report.section("tool_calls/001_x.txt");
            assert!(
                large.body.contains("Error: it broke in the middle"),
                "{name} at {budget}: {}",
                large.notes
            );
            assert!(!large.body.contains('\u{fffd}'), "{name} at {budget}");
            assert!(
                large.shown().len() >= 2,
                "{name} at {budget}: a passage or the tail is missing: {:?}",
                large.shown()
            );
        }
    }
}

#[test]
fn an_output_of_30_mb_is_searched_and_its_error_found() {
    let line = "step 0123456789 of many, nothing to see here, going on as before\n";
    let half = line.repeat((15 << 20) / line.len());
    let output = format!("{half}ERROR: the needle in the middle\n{half}");
    let store = worker_with([output.as_str()]);
    let tree = store.tree();
    let report = hold(&evidence(&tree, "workers/w/", 16_000), 16_000).unwrap();
    let section = report.section("tool_calls/001_x.txt");
    hold_against(section, output.as_bytes());
    // On a slow machine the render may time out before the middle, which the section must state.
    match section.notes.split_once("searched from byte ") {
        Some((_, start)) => {
            let start: usize =
                start.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
            assert!(start > half.len() || section.body.contains("the needle"), "{}", section.notes);
        }
        None => assert!(
            section.body.contains("ERROR: the needle in the middle"),
            "{:?}",
            section.shown()
        ),
    }
    assert!(section.own_text().ends_with(line), "the tail is shown");
}

#[test]
fn binary_data_is_described_not_printed() {
    let mut output = b"ELF\0\x01\x02".to_vec();
    output.extend(b"readable text after it\n".repeat(1_000));
    let store = worker_with([output.as_slice(), b"plain\n"]);
    let report = hold(&evidence(&store.tree(), "workers/w/", 16_000), 16_000).unwrap();
    let binary = report.section("tool_calls/001_x.txt");
    assert!(
        binary.notes.contains("binary") && !binary.body.contains("readable text"),
        "{binary:?}"
    );
    assert_eq!(binary.bytes, output.len() as u64);
    assert_eq!(report.section("tool_calls/002_x.txt").body, "plain\n");
}

#[test]
fn progress_bars_are_folded_to_their_last_state() {
    let bar: String = (0..=100).map(|n| format!("\rloading {n}%")).collect();
    let report =
        hold(&evidence(&worker_with([bar + "\ndone\n"]).tree(), "workers/w/", 16_000), 16_000)
            .unwrap();
    assert_eq!(report.sections[0].body, "loading 100%\ndone\n");
    assert_eq!((report.whole, report.cut), (1, 0));
}

#[test]
fn invalid_utf_8_is_shown_as_text_and_marked() {
    let report =
        hold(&evidence(&worker_with([b"caf\xe9 and more\n"]).tree(), "workers/w/", 16_000), 16_000)
            .unwrap();
    let section = &report.sections[0];
    assert!(section.body.contains(" and more") && section.body.starts_with("caf"), "{section:?}");
    assert!(section.notes.contains("not UTF-8"), "{section:?}");
}

/// Promise: A passage whose text is shown elsewhere in the excerpt is not shown again.
#[test]
fn passage_shown_elsewhere_is_not_repeated() {
    let filler =
        |from: usize| (from..from + 500).map(|n| format!("step {n} of many\n")).collect::<String>();
    let trace = "\n    at f (src/a.x:10)\n    at g (src/b.x:20)\n    at h (src/c.x:30)\n\n";
    let parts: Vec<String> = (0..4).map(|n| filler(n * 500) + trace).collect();
    let output = parts.concat() + &filler(2_000);
    let store = worker_with([output.as_str()]);
    let report = hold_store_against(&store, &store.tree(), 2_048).unwrap();
    let body = &report.section("tool_calls/001_x.txt").body;
    assert_eq!(body.matches("src/a.x:10").count(), 1, "{body}");
}
