//! The real Claude Agent SDK: the parts that its store of sessions writes to S3 are read as the
//! session that its local transcripts hold.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use swarmletfs_base::store::Disk;

use super::{CLAIM, CLAIM_OF_TESTER, Client, FAILURE, SCRIPT, target};
use crate::objects;
use crate::objects::server::{ACCESS_KEY, BUCKET, SECRET_KEY, new_prefix, server};
use crate::support::{Seen, see_folder};

const AGENT_SDK: Client = Client {
    name: "agent-sdk",
    title: "the Claude Agent SDK",
    setup: "scripts/setup --all, if npm is there",
    store: "config/projects",
};
/// Files that name the transcript or depend on how it is stored.
const OF_STORE: [&str; 2] = ["source.meta.json", "index.json"];
/// Lines that only one side has: the metadata of a subagent, which has a file of its own beside a
/// local transcript, and the requests to the model, which the store does not get.
const NOT_SHARED: [&str; 2] = ["{\"type\":\"agent_metadata\"", "{\"type\":\"api-request"];

/// Returns the files of all workers.
fn workers(tree: &swarmletfs_tree::tree::Tree) -> BTreeMap<String, String> {
    let seen = see_folder(tree, "workers").unwrap().into_iter();
    let files = seen.filter_map(|(path, seen)| match seen {
        Seen::File { bytes, .. } => Some((path, bytes)),
        Seen::Folder { .. } | Seen::Link(_) => None,
    });
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    files
        .map(|(path, bytes)| (text(path), text(bytes)))
        .filter(|(path, _)| !OF_STORE.iter().any(|name| path.ends_with(name)))
        .map(|(path, text)| {
            let is_shared = |line: &&str| !NOT_SHARED.iter().any(|start| line.starts_with(start));
            (path, text.split_inclusive('\n').filter(is_shared).collect())
        })
        .collect()
}

#[test]
#[ignore = "only in scripts/check --all"]
fn a_session_of_the_agent_sdk_in_s3_is_the_one_of_its_local_transcripts() {
    let Some(server) = server() else { return };
    if !AGENT_SDK.is_here() {
        return;
    }
    let (dir, prefix) = (tempfile::tempdir().unwrap(), new_prefix());
    let out = dir.path().join("session");
    let ended = Command::new(SCRIPT)
        .args(["--client", AGENT_SDK.name, "--out"])
        .arg(&out)
        .args([&format!("http://{}", server.address()), BUCKET, &prefix])
        .env("CARGO_TARGET_DIR", target())
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    assert!(ended.unwrap().success(), "the checks in tests/clients");
    let local = workers(&objects::tree(Disk::open(&out.join(AGENT_SDK.store)).unwrap()));
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let in_parts = workers(&objects::tree(bucket));
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&local), names(&in_parts));
    for (path, text) in &local {
        assert_eq!(text, &in_parts[path], "{path}");
    }
    let has = |part: &str| {
        in_parts.iter().any(|(path, text)| path.ends_with("summary") && text.contains(part))
    };
    for part in [CLAIM, CLAIM_OF_TESTER, FAILURE, "Run the tests"] {
        assert!(has(part), "{part}: {in_parts:#?}");
    }
}
