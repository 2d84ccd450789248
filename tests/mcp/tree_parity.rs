//! R31: for random stores and views, clients read exactly the files of the tree.

use std::time::Duration;

use serde_json::{Value, json};
use swarmletfs_tree::tree::{Settings, Tree};

use super::Client;
use crate::hostile::views::random_store;
use crate::support::{Seen, see, see_folder, seeds};

/// Number of random stores.
const STORES: usize = 64;

/// Promise: A client can read everything in the tree.
#[test]
fn client_reads_what_the_tree_holds() {
    for seed in seeds(STORES) {
        let (store, filter, ids) = random_store(seed);
        let view = || {
            Tree::new(store.view(Duration::from_secs(3_600), filter.clone()), Settings::default())
        };
        let tree = view();
        let mut client = Client::new(view());
        let seen = see_folder(&tree, "").unwrap();
        for (path, one) in &seen {
            let Ok(path) = std::str::from_utf8(path) else { continue };
            match one {
                Seen::File { bytes, .. } => {
                    let (texts, is_error) = client.call(
                        "read_file",
                        json!({"path": path, "unit": "bytes", "limit": 1 << 20}),
                    );
                    assert!(!is_error, "{seed}: {path}: {texts:?}");
                    match std::str::from_utf8(bytes) {
                        Ok(text) if !text.contains('\0') && !text.is_empty() => {
                            assert_eq!(texts, [text], "{seed}: {path}")
                        }
                        _ => assert!(
                            texts.last().unwrap().starts_with('['),
                            "{seed}: {path}: {texts:?}"
                        ),
                    }
                }
                Seen::Folder { .. } => {
                    let listed = client.text("list_dir", json!({"path": path}));
                    let listed: Value = serde_json::from_str(&listed).unwrap();
                    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
                    let inside = |other: &Vec<u8>| {
                        let name = other.strip_prefix(prefix.as_bytes());
                        name.is_some_and(|name| !name.is_empty() && !name.contains(&b'/'))
                    };
                    let all = seen.keys().filter(|other| inside(other)).count();
                    assert_eq!(listed["entries"].as_array().unwrap().len(), all, "{seed}: {path}");
                }
                Seen::Link(_) => {}
            }
        }
        // No tool finds a worker outside the view, and the error equals that of an unknown worker.
        for id in ids {
            let is_here = see(&tree, format!("workers/{id}/summary")).is_ok();
            for (tool, arguments) in [
                ("summarize", json!({"worker": id})),
                ("get_evidence", json!({"worker": id})),
                ("get_tool_output", json!({"worker": id, "call": 1})),
                ("compare", json!({"workers": [id, "never-was"]})),
            ] {
                let (texts, is_error) = client.call(tool, arguments);
                let is_absent = is_error
                    && (texts[0].contains("no such file or folder in this view")
                        || texts[0].contains("not a worker here")
                        || texts[0].contains("not workers here"));
                assert!(is_absent || is_here, "{seed}: {tool} of {id}: {texts:?}");
            }
        }
    }
}
