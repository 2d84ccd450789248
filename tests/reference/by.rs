//! Expected content of `by/`: a directory for each shared property, with a symlink to each worker
//! that has it.

use std::collections::{BTreeMap, BTreeSet};

use super::view::{ExpectedNode, Member, Put};

const FACETS: [&str; 14] = [
    "status",
    "outcome",
    "type",
    "tag",
    "tool",
    "job",
    "run",
    "day",
    "project",
    "branch",
    "model",
    "source",
    "file",
    "file.read",
];

/// Adds all of `by/`. These stores have no task types, no jobs, no branches, and no record of
/// files.
pub fn by(put: &mut Put<'_>, members: &[Member<'_>]) {
    put(&[b"by"], ExpectedNode::Folder(None));
    for facet in FACETS {
        let folder = format!("by/{facet}");
        put(&[folder.as_bytes()], ExpectedNode::Folder(None));
        let mut values: BTreeMap<String, Vec<&Member<'_>>> = BTreeMap::new();
        for member in members {
            let own: BTreeSet<String> = facet_values(facet, member).into_iter().collect();
            own.into_iter().for_each(|value| values.entry(value).or_default().push(member));
        }
        for (value, members) in values {
            let folder = format!("{folder}/{}", escaped(&value));
            let newest = members.iter().map(|member| member.worker.newest).max();
            put(&[folder.as_bytes()], ExpectedNode::Folder(newest));
            for member in members {
                let target = [b"../../../workers/", member.folder()].concat();
                put(&[folder.as_bytes(), b"/", &link(member)], ExpectedNode::Link(vec![target]));
            }
        }
    }
}

fn facet_values(facet: &str, member: &Member<'_>) -> Vec<String> {
    let record = &member.worker.record;
    match facet {
        "status" => vec![record.status().to_owned()],
        "outcome" => vec![member.worker.outcome.to_owned()],
        "tag" => record.tags.clone(),
        "tool" => member.worker.calls.iter().map(|call| call.tool.clone()).collect(),
        "run" => record.run.iter().cloned().collect(),
        "project" => {
            let cwd = record.cwd.as_deref().unwrap_or_default();
            cwd.split('/').rfind(|part| !part.is_empty()).map(str::to_owned).into_iter().collect()
        }
        "source" => vec!["swarmlet".into()],
        "model" => record.model.iter().cloned().collect(),
        "day" => record.created().iter().map(|time| time.to_string()[..10].to_owned()).collect(),
        _ => Vec::new(),
    }
}

/// Returns the name of a worker's symlink, which avoids reserved names.
fn link(member: &Member<'_>) -> Vec<u8> {
    let folder = member.folder();
    let ours = FACETS.into_iter().chain(["limit"]).any(|name| folder == name.as_bytes());
    if ours { [folder, b".own"].concat() } else { folder.to_vec() }
}

fn escaped(value: &str) -> String {
    let escape = |(at, c): (usize, char)| match c {
        '/' | '%' => format!("%{:02X}", c as u32),
        '.' if at == 0 => "%2E".to_owned(),
        c if c.is_control() => c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
        c => c.to_string(),
    };
    if value.is_empty() { "%".into() } else { value.chars().enumerate().map(escape).collect() }
}
