//! What is seen held against what must be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::bytes::Regex;
use serde_json::Value;

use super::ground::{Raw, Time};
use super::view::{Says, Shown};
use crate::support::Seen;

/// All that is seen, by path.
pub type Sight = BTreeMap<Vec<u8>, Seen>;

/// The first difference between what must be seen and what is; with a path, and both sides.
pub fn compare(must: &BTreeMap<Vec<u8>, Shown>, sight: &Sight) -> Result<(), String> {
    let paths: BTreeSet<&Vec<u8>> = must.keys().chain(sight.keys()).collect();
    for path in paths {
        let shown = path.escape_ascii();
        match (must.get(path), sight.get(path)) {
            (Some(must), Some(seen)) => one(must, seen).map_err(|what| format!("{shown}: {what}"))?,
            (Some(_), None) => return Err(format!("{shown}: not there")),
            (None, _) => return Err(format!("{shown}: must not be there")),
        }
    }
    Ok(())
}

fn one(must: &Shown, seen: &Seen) -> Result<(), String> {
    match (must, seen) {
        (Shown::Folder(time), Seen::Folder { mtime, .. }) => same_time(*time, *mtime),
        (Shown::Link(targets), Seen::Link(target)) if targets.contains(target) => Ok(()),
        (Shown::Own { bytes, mode, mtime, .. }, Seen::File { bytes: seen, attr, mtime: told }) => {
            if bytes != seen {
                return Err(format!("{:?} and not {:?}", brief(seen), brief(bytes)));
            }
            if attr.0 != *mode {
                return Err(format!("mode {:o} and not {mode:o}", attr.0));
            }
            same_time(Some(*mtime), *told)
        }
        (Shown::Made { says, mtime }, Seen::File { bytes, mtime: told, .. }) => {
            made(says, bytes)?;
            same_time(*mtime, *told)
        }
        (must, seen) => Err(format!("{seen:?} and not {must:?}")),
    }
}

fn same_time(must: Option<Time>, told: Time) -> Result<(), String> {
    match must {
        Some(must) if must != told => Err(format!("time {told:?} and not {must:?}")),
        _ => Ok(()),
    }
}

fn brief(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(80)].escape_ascii().to_string()
}

fn made(says: &Says, bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    match says {
        Says::Exactly(must) if text == *must => Ok(()),
        Says::Exactly(_) => Err(format!("another text: {:?}", brief(bytes))),
        Says::Json(must) => {
            let mut value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
            in_order(&mut value);
            holds(must, &value, "").map_err(|what| format!("{what} in {text}"))
        }
        Says::Text(most, must) => all_in(bytes, text, *most, must),
        Says::Causes(most, must, failing) => {
            all_in(bytes, text, *most, must)?;
            let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("[FAILED] ")).collect();
            let lines: Vec<&str> = lines.into_iter().filter(|line| !line.starts_with("workers/")).collect();
            let told =
                |line: &&str| line.split_once(" workers (").and_then(|(count, _)| count.parse().ok()).unwrap_or(1);
            let all: usize = lines.iter().map(told).sum();
            let names = |name: &String, line: &&str| {
                let among = [("(", ", "), ("(", "): "), (", ", ", "), (", ", "): ")];
                let alone = line.starts_with(&format!("{name}: "));
                alone || among.iter().any(|(from, to)| line.contains(&format!("{from}{name}{to}")))
            };
            match failing.iter().find(|name| !lines.iter().any(|line| names(name, line))) {
                Some(name) => Err(format!("why {name} failed is not in {text}")),
                None if all != failing.len() => Err(format!("{all} failed and not {failing:?} in {text}")),
                None => Ok(()),
            }
        }
    }
}

/// All of `must` is in a text of `most` bytes at most.
fn all_in(bytes: &[u8], text: &str, most: usize, must: &[String]) -> Result<(), String> {
    if bytes.len() > most {
        return Err(format!("{} bytes and not {most} at most", bytes.len()));
    }
    match must.iter().find(|part| !text.contains(part.as_str())) {
        Some(part) => Err(format!("{part:?} is not in {text}")),
        None => used(text),
    }
}

/// The size that an excerpt says it has is the one it has.
fn used(text: &str) -> Result<(), String> {
    let told = text.lines().nth(1).and_then(|line| line.split("| Used: ").nth(1)?.split(' ').next());
    match told {
        Some(told) if told != text.len().to_string() => Err(format!("{} bytes, and it says {told}", text.len())),
        _ => Ok(()),
    }
}

/// Puts in order what no order is promised of; of the checks only the names.
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

/// Whether all of `must` is in `value`.
fn holds(must: &Value, value: &Value, at: &str) -> Result<(), String> {
    match (must, value) {
        (Value::Object(must), Value::Object(_)) => {
            must.iter().try_for_each(|(key, must)| holds(must, &value[key], &format!("{at}.{key}")))
        }
        (Value::Array(must), Value::Array(all)) if must.len() == all.len() => must
            .iter()
            .zip(all)
            .enumerate()
            .try_for_each(|(n, (must, value))| holds(must, value, &format!("{at}[{n}]"))),
        _ if must == value => Ok(()),
        _ => Err(format!("{at}: {value} and not {must}")),
    }
}

/// What is written into every file and is there only once.
fn tokens(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    static TOKEN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"token-\d+-\d+\.").unwrap());
    TOKEN.find_iter(bytes).map(|found| found.as_bytes())
}

/// That nothing is seen in an owner's view that stands only in files of others, and in nothing that must be seen.
/// `folders` are the owner's, in which `mine` is what lies for him.
pub fn keeps_apart(
    mine: &Raw,
    raw: &Raw,
    folders: &[&[u8]],
    must: &BTreeMap<Vec<u8>, Shown>,
    sight: &Sight,
) -> Result<(), String> {
    let told = |shown: &Shown| match shown {
        Shown::Made { says: Says::Json(value), .. } => value.to_string().into_bytes(),
        _ => Vec::new(),
    };
    let inside: Vec<Vec<u8>> = folders.iter().flat_map(|folder| mine.below(folder)).filter_map(bytes_of).collect();
    let told: Vec<Vec<u8>> = must.values().map(told).collect();
    let mine: BTreeSet<&[u8]> = inside.iter().chain(&told).flat_map(|bytes| tokens(bytes)).collect();
    let all: Vec<Vec<u8>> = raw.below(b"").filter_map(bytes_of).collect();
    let foreign: BTreeSet<&[u8]> =
        all.iter().flat_map(|bytes| tokens(bytes)).filter(|token| !mine.contains(token)).collect();
    for (path, seen) in sight {
        let bytes = match seen {
            Seen::File { bytes, .. } | Seen::Link(bytes) => bytes.as_slice(),
            Seen::Folder { .. } => b"",
        };
        if let Some(token) = tokens(bytes).chain(tokens(path)).find(|token| foreign.contains(token)) {
            return Err(format!("{}: holds {}, which is another's", path.escape_ascii(), token.escape_ascii()));
        }
    }
    Ok(())
}

fn bytes_of((_, lying): (&[u8], &super::ground::Lying)) -> Option<Vec<u8>> {
    match &lying.what {
        super::ground::What::File(bytes) => Some(bytes.clone()),
        _ => None,
    }
}
