//! The table of fields that state an outcome, in docs/FORMATS.md: each of them is read, and a
//! sample has no other field that looks like one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;
use serde_json::Value;

/// A sample: the path of a field, records that hold it, and the outcome with it.
pub type Sample = (&'static str, Value, &'static str);

/// Returns the fields that the page names for a format.
fn documented(format: &str) -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/FORMATS.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix(&format!("| {format} | ")));
    let fields = rows.filter_map(|row| row.split(" | ").next());
    let name = Regex::new(r"(^|, )`([\w.]+)`").unwrap();
    fields
        .flat_map(|field| {
            name.captures_iter(field).map(|found| found[2].to_owned()).collect::<Vec<_>>()
        })
        .collect()
}

/// Checks that each documented field of `format` has a sample, that the outcome is another one
/// without it, and that nothing in the samples and in `more` looks like an outcome but these fields
/// and `unrelated` ones.
pub fn check(
    format: &str,
    samples: &[Sample],
    more: &[Value],
    unrelated: &[&str],
    outcome: impl Fn(&Value) -> String,
) {
    let documented = documented(format);
    let sampled: BTreeSet<String> = samples
        .iter()
        .map(|(path, ..)| documented.iter().find(|field| path.ends_with(*field)))
        .map(|field| field.expect("the field is on the page").clone())
        .collect();
    assert_eq!(sampled, documented, "{format}");
    for (path, records, expected) in samples {
        assert_eq!(outcome(records), *expected, "{format} {path}: {records}");
        let mut without = records.clone();
        assert!(remove(&mut without, &path.split('.').collect::<Vec<_>>()), "{path}");
        assert_ne!(outcome(&without), *expected, "{format} without {path}: {without}");
    }
    let looks_like_one = Regex::new(
        r"(?i)^(is_?error|err|error|fail(ed|ure)?|success|ok|status|outcome|exit_?code|return_?code|interrupted|.*denial.*|decision|code|killed|cancelled|aborted)$",
    )
    .unwrap();
    let mut found = BTreeSet::new();
    samples
        .iter()
        .map(|(_, records, _)| records)
        .chain(more)
        .for_each(|value| keys(value, &mut found));
    let is_known = |key: &String| {
        unrelated.contains(&key.as_str())
            || documented.iter().any(|field| field.rsplit('.').next() == Some(key))
    };
    found.retain(|key| looks_like_one.is_match(key) && !is_known(key));
    assert_eq!(found, BTreeSet::new(), "{format}: fields that look like outcomes and are not read");
}

/// Removes the field at a path. Returns true if it was there.
fn remove(value: &mut Value, path: &[&str]) -> bool {
    match (path, value) {
        ([name], Value::Object(fields)) => fields.remove(*name).is_some(),
        ([name, rest @ ..], Value::Object(fields)) => {
            fields.get_mut(*name).is_some_and(|value| remove(value, rest))
        }
        _ => false,
    }
}

/// Collects the names of all fields.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            keys(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}
