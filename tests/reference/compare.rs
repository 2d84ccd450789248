//! Comparison of observed nodes with expected ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::bytes::Regex;
use serde_json::Value;

use super::mutable_store::{RawEntries, Time};
use super::view::{ExpectedContent, ExpectedNode};
use crate::support::Seen;

/// Observed nodes by path.
pub type ObservedTree = BTreeMap<Vec<u8>, Seen>;

/// Returns the first difference between the expected and the observed tree.
pub fn compare(
    expected: &BTreeMap<Vec<u8>, ExpectedNode>,
    observed: &ObservedTree,
) -> Result<(), String> {
    let paths: BTreeSet<&Vec<u8>> = expected.keys().chain(observed.keys()).collect();
    for path in paths {
        let shown = path.escape_ascii();
        match (expected.get(path), observed.get(path)) {
            (Some(expected), Some(seen)) => {
                one(expected, seen).map_err(|what| format!("{shown}: {what}"))?
            }
            (Some(_), None) => return Err(format!("{shown}: not there")),
            (None, _) => return Err(format!("{shown}: must not exist")),
        }
    }
    Ok(())
}

/// Most nanoseconds by which the time of a directory is later, so that the kernel lists it again.
const SHIFT_MAX: u32 = 18;

fn one(expected: &ExpectedNode, seen: &Seen) -> Result<(), String> {
    match (expected, seen) {
        (ExpectedNode::Folder(time), Seen::Folder { mtime, .. }) => {
            let shifted = |(secs, nanos): &Time| {
                mtime.0 == *secs && (*nanos..=*nanos + SHIFT_MAX).contains(&mtime.1)
            };
            if time.as_ref().is_some_and(shifted) { Ok(()) } else { same_time(*time, *mtime) }
        }
        (ExpectedNode::Link(targets), Seen::Link(target)) if targets.contains(target) => Ok(()),
        (
            ExpectedNode::Own { bytes, mode, mtime, .. },
            Seen::File { bytes: seen, attr, mtime: told },
        ) => {
            if bytes != seen {
                return Err(format!("{:?} and not {:?}", brief(seen), brief(bytes)));
            }
            if attr.0 != *mode {
                return Err(format!("mode {:o} and not {mode:o}", attr.0));
            }
            same_time(Some(*mtime), *told)
        }
        (ExpectedNode::Made { says, mtime }, Seen::File { bytes, mtime: told, .. }) => {
            made(says, bytes)?;
            same_time(*mtime, *told)
        }
        (expected, seen) => Err(format!("{seen:?} and not {expected:?}")),
    }
}

fn same_time(expected: Option<Time>, told: Time) -> Result<(), String> {
    match expected {
        Some(expected) if expected != told => Err(format!("time {told:?} and not {expected:?}")),
        _ => Ok(()),
    }
}

fn brief(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(80)].escape_ascii().to_string()
}

fn made(says: &ExpectedContent, bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    match says {
        ExpectedContent::Exactly(expected) if text == *expected => Ok(()),
        ExpectedContent::Exactly(_) => Err(format!("another text: {:?}", brief(bytes))),
        ExpectedContent::Json(expected) => {
            let mut value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
            in_order(&mut value);
            holds(expected, &value, "").map_err(|what| format!("{what} in {text}"))
        }
        ExpectedContent::Text(most, expected) => all_in(bytes, text, *most, expected),
        ExpectedContent::Causes(most, expected, failing) => {
            all_in(bytes, text, *most, expected)?;
            let lines: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("[FAILED] ")).collect();
            let lines: Vec<&str> =
                lines.into_iter().filter(|line| !line.starts_with("workers/")).collect();
            let told = |line: &&str| {
                line.split_once(" workers (").and_then(|(count, _)| count.parse().ok()).unwrap_or(1)
            };
            let all: usize = lines.iter().map(told).sum();
            let names = |name: &String, line: &&str| {
                let among = [("(", ", "), ("(", "): "), (", ", ", "), (", ", "): ")];
                let alone = line.starts_with(&format!("{name}: "));
                alone || among.iter().any(|(from, to)| line.contains(&format!("{from}{name}{to}")))
            };
            match failing.iter().find(|name| !lines.iter().any(|line| names(name, line))) {
                Some(name) => Err(format!("why {name} failed is not in {text}")),
                None if all != failing.len() => {
                    Err(format!("{all} failed and not {failing:?} in {text}"))
                }
                None => Ok(()),
            }
        }
    }
}

/// Checks that a text has at most `most` bytes and contains all of `expected`.
fn all_in(bytes: &[u8], text: &str, most: usize, expected: &[String]) -> Result<(), String> {
    if bytes.len() > most {
        return Err(format!("{} bytes and not {most} at most", bytes.len()));
    }
    match expected.iter().find(|part| !text.contains(part.as_str())) {
        Some(part) => Err(format!("{part:?} is not in {text}")),
        None => used(text),
    }
}

/// Checks that an excerpt states its own size.
fn used(text: &str) -> Result<(), String> {
    let told =
        text.lines().nth(1).and_then(|line| line.split("| Used: ").nth(1)?.split(' ').next());
    match told {
        Some(told) if told != text.len().to_string() => {
            Err(format!("{} bytes, and it says {told}", text.len()))
        }
        _ => Ok(()),
    }
}

/// Sorts lists of unspecified order, and reduces checks to their names.
fn in_order(value: &mut Value) {
    if let Some(files) = value.get_mut("files").and_then(Value::as_array_mut) {
        files.sort_by_key(|file| file["path"].as_str().map(str::to_owned));
    }
    if let Some(Value::Array(checks)) = value.get_mut("checks") {
        checks.iter_mut().for_each(|check| *check = check["name"].take());
    }
    for key in ["checks", "check_names"] {
        if let Some(names) = value.get_mut(key).and_then(Value::as_array_mut) {
            names.sort_by_key(|name| name.as_str().map(str::to_owned));
        }
    }
    value.get_mut("workers").and_then(Value::as_array_mut).into_iter().flatten().for_each(in_order);
}

/// Checks that `value` contains all of `expected`.
fn holds(expected: &Value, value: &Value, at: &str) -> Result<(), String> {
    match (expected, value) {
        (Value::Object(expected), Value::Object(_)) => expected
            .iter()
            .try_for_each(|(key, expected)| holds(expected, &value[key], &format!("{at}.{key}"))),
        (Value::Array(expected), Value::Array(all)) if expected.len() == all.len() => {
            expected.iter().zip(all).enumerate().try_for_each(|(n, (expected, value))| {
                holds(expected, value, &format!("{at}[{n}]"))
            })
        }
        _ if expected == value => Ok(()),
        _ => Err(format!("{at}: {value} and not {expected}")),
    }
}

/// Returns the unique tokens in a file.
fn tokens(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    static TOKEN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"token-\d+-\d+\.").unwrap());
    TOKEN.find_iter(bytes).map(|found| found.as_bytes())
}

/// Checks that an owner's view contains no token that only other owners' files contain. `folders`
/// are the owner's, and `mine` are the store's entries as this view reads them.
pub fn keeps_apart(
    mine: &RawEntries,
    raw: &RawEntries,
    folders: &[&[u8]],
    expected: &BTreeMap<Vec<u8>, ExpectedNode>,
    observed: &ObservedTree,
) -> Result<(), String> {
    let told = |shown: &ExpectedNode| match shown {
        ExpectedNode::Made { says: ExpectedContent::Json(value), .. } => {
            value.to_string().into_bytes()
        }
        _ => Vec::new(),
    };
    let inside: Vec<Vec<u8>> =
        folders.iter().flat_map(|folder| mine.below(folder)).filter_map(bytes_of).collect();
    let told: Vec<Vec<u8>> = expected.values().map(told).collect();
    let mine: BTreeSet<&[u8]> =
        inside.iter().chain(&told).flat_map(|bytes| tokens(bytes)).collect();
    let all: Vec<Vec<u8>> = raw.below(b"").filter_map(bytes_of).collect();
    let foreign: BTreeSet<&[u8]> =
        all.iter().flat_map(|bytes| tokens(bytes)).filter(|token| !mine.contains(token)).collect();
    for (path, seen) in observed {
        let bytes = match seen {
            Seen::File { bytes, .. } | Seen::Link(bytes) => bytes.as_slice(),
            Seen::Folder { .. } => b"",
        };
        if let Some(token) = tokens(bytes).chain(tokens(path)).find(|token| foreign.contains(token))
        {
            return Err(format!(
                "{}: holds {}, which is another's",
                path.escape_ascii(),
                token.escape_ascii()
            ));
        }
    }
    Ok(())
}

fn bytes_of((_, entry): (&[u8], &super::mutable_store::RawEntry)) -> Option<Vec<u8>> {
    match &entry.kind {
        super::mutable_store::RawKind::File(bytes) => Some(bytes.clone()),
        _ => None,
    }
}
