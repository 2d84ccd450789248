//! evidence.txt under hostile input, parsed by its own frame: limits, frame, omissions, order,
//! fairness.

mod attention;
mod bounds;
mod causes;
mod failures_first;
mod frame;
mod omissions;
mod outcomes;
mod repeats;
mod shares;
mod short_steps;
mod suspects;
mod swarm;
mod table;
mod tokens;
mod without_calls;

use std::sync::LazyLock;

use regex::Regex;
use serde_json::json;
use swarmletfs_tree::tree::Tree;

use crate::support::{TestStore, see};

/// Reads `evidence.<budget>.txt` in `folder`.
pub fn evidence(tree: &Tree, folder: &str, budget: usize) -> String {
    let path = format!("{folder}evidence.{budget}.txt");
    let seen = see(tree, &path).unwrap_or_else(|error| panic!("{path}: {error}"));
    String::from_utf8(seen.bytes().to_vec())
        .unwrap_or_else(|error| panic!("{path} is not UTF-8: {error}"))
}

/// A section of an evidence.txt.
#[derive(Debug)]
pub struct Section {
    pub failed: bool,
    pub suspect: bool,
    pub path: String,
    pub bytes: u64,
    /// Text between the size and the closing parenthesis.
    pub notes: String,
    /// Text between the section line and the blank line after it.
    pub body: String,
}

impl Section {
    /// Returns the byte ranges of the omissions in the body.
    pub fn omissions(&self) -> Vec<(u64, u64)> {
        self.body.lines().filter_map(parse_omission).collect()
    }

    /// Returns the byte ranges outside all omissions.
    pub fn shown(&self) -> Vec<(u64, u64)> {
        let omissions = self.omissions();
        let starts = std::iter::once(0).chain(omissions.iter().map(|(_, end)| *end));
        let ends = omissions.iter().map(|(start, _)| *start).chain([self.bytes]);
        starts.zip(ends).filter(|(start, end)| start < end).collect()
    }

    /// Returns true if the body states no omission.
    pub fn is_whole(&self) -> bool {
        let is_folded = || self.body.lines().any(|line| line.starts_with(REPEATS));
        !self.is_described() && self.omissions().is_empty() && !is_folded()
    }

    /// Returns true if the section describes the output instead of showing it.
    pub fn is_described(&self) -> bool {
        self.notes.contains("binary") || self.notes.contains("not read")
    }

    /// Returns the body without omission lines.
    pub fn own_text(&self) -> String {
        self.body.split_inclusive('\n').filter(|line| !line.starts_with("[... ")).collect()
    }
}

/// Start of a line that states how often the line above repeats.
pub const REPEATS: &str = "[... the line above ";

static OMISSION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^\[\.\.\. (\d+) B omitted: bytes (\d+)-(\d+) \.\.\.\]$").unwrap()
});
static SECTION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(\[FAILED\] |\[SUSPECT\] )?(.+) \((\d+) B((?:, [^()]+)?)\)$").unwrap()
});
static HEADER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^Budget: (\d+) B \| Used: (\d+) B \| (.+) \| Whole: (\d+) \| Cut: (\d+) \| Listed: (\d+)$").unwrap()
});

/// Parses an omission line. Panics on any other line with its start.
fn parse_omission(line: &str) -> Option<(u64, u64)> {
    if !line.starts_with("[... ") || line.starts_with(REPEATS) {
        return None;
    }
    let found =
        OMISSION.captures(line).unwrap_or_else(|| panic!("a worker wrote an omission: {line:?}"));
    let number = |at: usize| found[at].parse::<u64>().unwrap();
    let (start, end) = (number(2), number(3) + 1);
    assert_eq!(number(1), end - start, "{line}");
    Some((start, end))
}

/// A parsed evidence.txt.
#[derive(Debug)]
pub struct Report {
    pub tag: String,
    pub title: String,
    pub counted: String,
    pub whole: usize,
    pub cut: usize,
    pub listed: usize,
    /// Lines between the header and the first section.
    pub lines: Vec<String>,
    pub sections: Vec<Section>,
    /// Steps on one line each.
    pub short: Vec<String>,
    /// Entries of the list of omitted sections.
    pub not_shown: Vec<String>,
}

impl Report {
    /// Parses `text` and checks every statement of the frame about itself.
    pub fn parse(text: &str, budget: usize) -> Report {
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        let first = lines[0].trim_end();
        let tag = first[first.len() - 13..].to_owned();
        assert!(tag.starts_with('#') && tag[1..].bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
        let title = first
            .strip_prefix("--- Evidence for ")
            .unwrap()
            .strip_suffix(&format!(" --- {tag}"))
            .unwrap();
        assert_eq!(lines.pop().unwrap(), format!("--- End Evidence --- {tag}\n"), "{text}");
        assert_eq!(lines.pop().unwrap(), "\n", "a blank line before the last");
        let header =
            HEADER.captures(lines[1].trim_end()).unwrap_or_else(|| panic!("header: {}", lines[1]));
        let number = |at: usize| header[at].parse::<usize>().unwrap();
        assert_eq!(number(1), budget, "the header states the budget");
        assert_eq!(number(2), text.len(), "`Used` is the length of the file");
        let mut report = Report {
            title: title.to_owned(),
            counted: header[3].to_owned(),
            whole: number(4),
            cut: number(5),
            listed: number(6),
            lines: Vec::new(),
            sections: Vec::new(),
            short: Vec::new(),
            not_shown: Vec::new(),
            tag: tag.clone(),
        };
        let (mut listing, mut short) = (false, None);
        for line in &lines[2..] {
            match line.trim_end_matches('\n').strip_suffix(&format!(": {tag}")) {
                Some(line) if line.starts_with("Not shown (") => {
                    end_part(&mut report);
                    listing = true;
                }
                Some(line) if line.starts_with("Short steps (") => {
                    assert!(!listing, "steps after the list: {text}");
                    end_part(&mut report);
                    let count = line.trim_start_matches("Short steps (").trim_end_matches(')');
                    short = Some(count.parse::<usize>().unwrap());
                }
                Some(line) => {
                    assert!(!listing && short.is_none(), "a section after a list: {line}");
                    end_part(&mut report);
                    report.sections.push(parse_section_line(line));
                }
                None if listing => report.not_shown.push(line.trim_end().to_owned()),
                None if short.is_some() => report.short.push(line.trim_end().to_owned()),
                None => match report.sections.last_mut() {
                    Some(section) => section.body.push_str(line),
                    None => report.lines.push(line.trim_end_matches('\n').to_owned()),
                },
            }
        }
        let tags = text.matches(&tag).count();
        assert_eq!(
            tags,
            2 + report.sections.len() + usize::from(listing) + usize::from(short.is_some()),
            "the tag is only in the frame: {text}"
        );
        assert_eq!(listing, report.listed > 0, "a count of listed sections needs a list: {text}");
        assert_eq!(short.unwrap_or(0), report.short.len(), "{text}");
        let shown = report.sections.len() + report.short.len();
        assert_eq!(report.whole + report.cut, shown, "{text}");
        report
    }

    /// Returns the number of calls in the header.
    pub fn calls(&self) -> usize {
        self.counted.strip_prefix("Calls: ").unwrap().split(' ').next().unwrap().parse().unwrap()
    }

    /// Returns the section of a path.
    pub fn section(&self, path: &str) -> &Section {
        let found = self.sections.iter().find(|section| section.path == path);
        found.unwrap_or_else(|| panic!("no section {path} in {self:#?}"))
    }

    /// Returns how many omitted sections are named, and how many are only counted.
    pub fn named_and_counted(&self) -> (usize, usize) {
        let counted =
            |line: &str| line.strip_prefix("and ")?.strip_suffix(" more")?.parse::<usize>().ok();
        let more = self.not_shown.last().and_then(|line| counted(line));
        (self.not_shown.len() - usize::from(more.is_some()), more.unwrap_or(0))
    }
}

/// Removes the blank line before the next section or list.
fn end_part(report: &mut Report) {
    if let Some(line) = report.short.pop() {
        assert_eq!(line, "", "a blank line after the short steps");
        return;
    }
    match report.sections.last_mut() {
        Some(section) => {
            assert!(section.body.ends_with('\n'), "a blank line after {}", section.path);
            section.body.pop();
            assert!(section.body.is_empty() || section.body.ends_with('\n'), "{section:?}");
        }
        None => assert_eq!(
            report.lines.pop().as_deref(),
            Some(""),
            "a blank line before the first section"
        ),
    }
}

fn parse_section_line(line: &str) -> Section {
    let found = SECTION.captures(line).unwrap_or_else(|| panic!("no section line: {line:?}"));
    Section {
        failed: found.get(1).is_some_and(|mark| mark.as_str() == "[FAILED] "),
        suspect: found.get(1).is_some_and(|mark| mark.as_str() == "[SUSPECT] "),
        path: found[2].to_owned(),
        bytes: found[3].parse().unwrap(),
        notes: found[4].to_owned(),
        body: String::new(),
    }
}

/// Returns true if `text` has a frame rather than only counts.
pub fn has_frame(text: &str) -> bool {
    text.starts_with("--- Evidence for ")
}

/// Checks the rules for every evidence.txt. Returns the report if `text` has a frame.
pub fn hold(text: &str, budget: usize) -> Option<Report> {
    assert!(text.len() <= budget, "{} B at {budget}: {text}", text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let allowed = match c {
            '\n' | '\t' => true,
            '\r' => chars.peek() == Some(&'\n'),
            '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
            c => !c.is_control(),
        };
        assert!(allowed, "{c:?} at {budget}: {text:?}");
    }
    let lower = text.to_ascii_lowercase();
    for marker in ["[evidence:", "[tool_output:"] {
        assert!(!lower.contains(marker), "{marker} at {budget}: {text}");
    }
    if !has_frame(text) {
        return None;
    }
    let report = Report::parse(text, budget);
    for section in &report.sections {
        check_omissions(section);
    }
    // A cut section without a mark would look whole.
    let whole = report.sections.iter().filter(|section| section.is_whole()).count();
    assert_eq!(whole + report.short.len(), report.whole, "{report:#?}");
    let (named, counted) = report.named_and_counted();
    assert_eq!(
        named + counted,
        if report.not_shown.is_empty() { 0 } else { report.listed },
        "{text}"
    );
    Some(report)
}

/// Checks that omissions are in order, within the output, and separated by shown text.
fn check_omissions(section: &Section) {
    let mut shown_from = 0;
    for (at, (start, end)) in section.omissions().into_iter().enumerate() {
        assert!(start > shown_from || (at, start) == (0, 0), "{section:?}");
        assert!(end > start && end <= section.bytes, "{section:?}");
        shown_from = end;
    }
    let is_part = !section.omissions().is_empty();
    assert!(
        !is_part || !section.is_described() && !section.shown().is_empty(),
        "the section is empty: {section:?}"
    );
}

/// Creates a worker `w` with one call per output, numbered in order.
pub fn worker_with<T: AsRef<[u8]>>(outputs: impl IntoIterator<Item = T>) -> TestStore {
    let store = TestStore::new();
    store.worker("w", json!({}));
    for (at, output) in outputs.into_iter().enumerate() {
        store.call("w", at as u32 + 1, "x", output);
    }
    store
}
