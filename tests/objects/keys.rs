//! Keys as anyone may choose them: each is a file with its bytes, or is left out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store, read_range};
use swarmletfs_objects::Bucket;

use super::emulators::google;
use super::server::{new_prefix, server, url};
use crate::cli::program::{run, swarmletfs};
use crate::support::{TestStore, patience};

/// Reads all objects, by path.
fn read_all(bucket: &Bucket, folder: &RelPath, all: &mut BTreeMap<String, Vec<u8>>) {
    for entry in bucket.list(folder).unwrap() {
        let path = folder.join(&entry.name);
        if entry.kind == Kind::Folder {
            read_all(bucket, &path, all);
        } else {
            let file = bucket.open(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert_eq!(bucket.stat(&path).unwrap(), file.meta().unwrap());
            all.insert(
                String::from_utf8(path.as_bytes().to_vec()).unwrap(),
                read_range(&*file, 0, 9_999).unwrap(),
            );
        }
    }
}

fn objects(bucket: &Bucket) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    read_all(bucket, &RelPath::root(), &mut all);
    all
}

/// Returns keys beneath `prefix` with every printable character of ASCII, and others.
fn any_keys(prefix: &str) -> Vec<String> {
    let mut keys: Vec<String> = (b' '..=b'~')
        .map(char::from)
        .filter(|character| !"/.".contains(*character))
        .map(|character| format!("ascii/{character}"))
        .collect();
    keys.extend((b'!'..=b'~').map(|byte| format!("around/a{}b", char::from(byte))).filter(|key| {
        // A directory beside the other names.
        !key.contains("a/b")
    }));
    let names = [
        "%41",
        "%2F",
        "..%2fa",
        "%",
        "%%",
        "%zz",
        "+",
        "a+b c",
        "a  b",
        " a",
        "a ",
        "#",
        "a#b?c=d&e",
        "...",
        ".hidden",
        "a.",
        "-",
        "--help",
        "~",
        "$(a)",
        "`a`",
        "a\\b",
        "é",
        "e\u{301}",
        "日本語",
        "🦀",
        "\u{202e}abc",
        "\u{200b}",
        "<Key>",
        "</Contents>",
        "&amp;",
        "]]>",
        "'\"",
    ];
    keys.extend(names.iter().map(|name| format!("names/{name}")));
    // As long as a key can be, of names as long as they can be.
    let long = [&*"a".repeat(255), &"ü".repeat(127), &"c".repeat(200)].join("/");
    let length = 1_024 - prefix.len() - 1 - "long/".len();
    keys.push(format!("long/{}", &format!("{long}/{}", "d".repeat(255))[..length.min(966)]));
    keys.push(format!("deep/{}/end", ["a"; 100].join("/")));
    keys
}

fn assert_all(keys: &[String], bucket: &Bucket) {
    let found = objects(bucket);
    for key in keys {
        assert_eq!(found.get(key).map(Vec::as_slice), Some(key.as_bytes()), "{key:?}");
    }
    assert_eq!(found.len(), keys.len(), "{:?}", found.keys());
}

fn hostile_prefix() -> String {
    format!("{} a+b%20#ü?&=", new_prefix())
}

/// Promise: Every key of an object store that is a path is a file with its bytes, whatever
/// characters it has.
#[test]
fn keys_with_any_characters_are_files_with_their_bytes() {
    let Some(server) = server() else { return };
    let prefix = hostile_prefix();
    let mut keys = any_keys(&prefix);
    // SeaweedFS reads it as a slash.
    keys.retain(|key| !key.contains('\\'));
    for key in &keys {
        server.put(&format!("{prefix}/{key}"), key);
    }
    assert_all(&keys, &server.open(&prefix, &server.settings()).unwrap());
}

#[test]
fn keys_of_google_with_any_characters_are_files_with_their_bytes() {
    let Some(server) = google() else { return };
    let prefix = hostile_prefix();
    let keys = any_keys(&prefix);
    for key in &keys {
        server.put(&format!("{prefix}/{key}"), key);
    }
    assert_all(&keys, &server.open(&prefix, &server.settings()).unwrap());
}

/// Promise: Keys that are no paths are left out, and leave the others as they are.
#[test]
fn keys_that_are_no_paths_hide_no_others() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    let control = ["a\nb", "a\tb", "a\rb", "\u{7f}", "\u{1}"];
    for name in control.iter().chain(&["fine"]) {
        server.put(&format!("{prefix}/x/{name}"), name);
    }
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let folder = RelPath::parse("x").unwrap();
    let mut found = Vec::new();
    for entry in bucket.list(&folder).unwrap() {
        // SeaweedFS lists characters that XML cannot have as another one, which names no object.
        match bucket.open(&folder.join(&entry.name)) {
            Ok(file) => {
                assert_eq!(read_range(&*file, 0, 99).unwrap(), entry.name.as_bytes());
                found.push(entry.name.display());
            }
            Err(error) => assert_eq!(error, Error::Stale, "{entry:?}"),
        }
    }
    assert!(found.contains(&"fine".to_owned()), "{found:?}");
}

#[test]
fn a_prefix_that_is_an_object_and_slashes_at_its_end() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    server.put(&format!("{prefix}/one"), "an object");
    let error = server.open(&format!("{prefix}/one"), &server.settings()).err().unwrap();
    assert!(error.to_string().contains("there is no object beneath it"), "{error}");
    server.put(&format!("{prefix}/two/three"), "beneath");
    for end in ["", "/", "//"] {
        let bucket = server.open(&format!("{prefix}/two{end}"), &server.settings()).unwrap();
        assert_eq!(objects(&bucket).into_keys().collect::<Vec<_>>(), ["three"]);
    }
    // A prefix ends at a slash.
    assert!(server.open(&format!("{prefix}/tw"), &server.settings()).is_err());
    for inner in ["a//b", "a/./b", "a/../b", "/a"] {
        assert!(server.open(inner, &server.settings()).is_err(), "{inner}");
    }
}

#[test]
fn an_empty_object_that_grows_is_another_version() {
    let Some(server) = server() else { return };
    let prefix = new_prefix();
    server.put(&format!("{prefix}/a"), "");
    server.put(&format!("{prefix}/b"), "");
    let settings = swarmletfs_objects::ObjectSettings {
        refresh: Duration::from_millis(100),
        ..server.settings()
    };
    let bucket = server.open(&prefix, &settings).unwrap();
    let path = RelPath::parse("a").unwrap();
    let file = bucket.open(&path).unwrap();
    assert_eq!(file.read_at(&mut [0; 9], 0), Ok(0));
    server.put(&format!("{prefix}/a"), "more");
    let begun = Instant::now();
    while bucket.stat(&path).unwrap().size == 0 {
        assert!(begun.elapsed() < patience(Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(file.read_at(&mut [0; 9], 0), Ok(0));
    assert_eq!(read_range(&*bucket.open(&path).unwrap(), 0, 9).unwrap(), b"more");
    // A file in the place of a directory, and the other way round.
    assert_eq!(bucket.open(&RelPath::parse("b/c").unwrap()).err(), Some(Error::NotADirectory));
}

#[test]
fn two_stores_of_one_bucket_and_the_whole_bucket_are_read() {
    let Some(server) = server() else { return };
    let list = |stores: &[&str]| {
        let mut command = swarmletfs(["ls", "workers"]);
        for store in stores {
            command.args(["--store", store]);
        }
        server.configure(&mut command);
        let output = run(command);
        output.assert_success();
        output.out
    };
    let urls = ["one", "two"].map(|name| {
        let (store, prefix) = (TestStore::new(), new_prefix());
        store.worker(name, json!({"status": "completed", "task": "Count"}));
        server.copy(&store.path(), &prefix);
        url(&prefix)
    });
    let both = list(&[&urls[0], &urls[1]]);
    assert!(both.contains("one") && both.contains("two"), "{both}");
    assert!(!list(&[&urls[0]]).contains("two"));
}
