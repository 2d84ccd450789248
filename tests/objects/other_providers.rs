//! `az://` and `gs://`: the same tree as from a folder, one version of each object, clear errors.

use std::time::{Duration, Instant};

use swarmletfs_base::error::Error;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Store, read_range};
use swarmletfs_objects::{Bucket, ObjectSettings};

use super::emulators::{ACCOUNT, ACCOUNT_KEY, CONTAINER, azurite, google};
use super::same_tree::{assert_has_tree, swarm};
use super::server::{new_prefix, without_proxy};
use crate::cli::program::{run, swarmletfs};
use crate::support::patience;

/// Size of an object of several blocks, in bytes.
const SIZE: usize = 1 << 20;

/// Asserts that an open file stays the version that was opened, and that a later open finds the new
/// one. `put` writes the object `a`.
fn assert_versions(bucket: &Bucket, put: &dyn Fn(Vec<u8>)) {
    let path = RelPath::parse("a").unwrap();
    let file = bucket.open(&path).unwrap();
    let before = file.meta().unwrap();
    // The time of an object without an ETag has seconds only.
    put(vec![b'2'; SIZE]);
    assert_eq!(read_range(&*file, 0, 1_000).unwrap(), vec![b'1'; 1_000]);
    assert_eq!(read_range(&*file, 0, SIZE), Err(Error::Stale));
    let begun = Instant::now();
    let new = loop {
        match bucket.open(&path) {
            Ok(file) if file.meta().unwrap() != before => break file,
            _ => assert!(begun.elapsed() < patience(Duration::from_secs(10))),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(read_range(&*new, 0, SIZE).unwrap() == vec![b'2'; SIZE]);
}

fn quick(settings: ObjectSettings) -> ObjectSettings {
    ObjectSettings { refresh: Duration::from_millis(500), ..settings }
}

#[test]
fn azure_has_the_tree_of_a_folder() {
    let Some(server) = azurite() else { return };
    let (store, prefix) = (swarm(), new_prefix());
    server.copy(&store.path(), &prefix);
    assert_has_tree(&store, server.open(&prefix, &server.settings()).unwrap());
}

#[test]
fn a_replaced_object_of_azure_is_another_version() {
    let Some(server) = azurite() else { return };
    let prefix = new_prefix();
    let put = |bytes| server.put(&format!("{prefix}/a"), bytes);
    put(vec![b'1'; SIZE]);
    assert_versions(&server.open(&prefix, &quick(server.settings())).unwrap(), &put);
}

#[test]
fn errors_of_azure_say_what_is_wrong() {
    let Some(server) = azurite() else { return };
    let prefix = new_prefix();
    server.put(&format!("{prefix}/workers/a/metadata.json"), "{}");
    let command = |url: &str, variables: &[(&str, &str)]| {
        let mut command = swarmletfs(["ls", "workers", "--store", url]);
        without_proxy(&mut command).env("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT);
        command.env("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY);
        command.env("AZURE_STORAGE_ENDPOINT", server.endpoint());
        command.envs(variables.iter().copied());
        run(command)
    };
    let url = format!("az://{CONTAINER}/{prefix}");
    assert!(command(&url, &[]).out.contains('a'));
    let wrong_key = ("AZURE_STORAGE_ACCOUNT_KEY", "YW5vdGhlciBrZXk=");
    let closed = ("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9/devstoreaccount1");
    for (url, variables, named) in [
        ("az://none/a", &[][..], &["there is no such container", "check its name"][..]),
        ("az://swarm/none", &[], &["there is no object beneath it"]),
        (&url, &[wrong_key], &["the key is wrong", "check the credentials"]),
        (&url, &[closed], &["it cannot be reached", "check the network"]),
    ] {
        command(url, variables).assert_failure(1, &[&["cannot read az://"], named].concat());
    }
}

/// Azurite at its usual port has no further settings; the test takes another port.
#[test]
#[ignore = "only in scripts/check --all"]
fn the_emulator_of_azure_is_found_by_its_variables() {
    let Some(server) = azurite() else { return };
    let prefix = new_prefix();
    server.put(&format!("{prefix}/workers/a/metadata.json"), "{}");
    let mut command = swarmletfs(["ls", "workers", "--store"]);
    command.arg(format!("az://{CONTAINER}/{prefix}")).env("AZURE_STORAGE_USE_EMULATOR", "true");
    let url = server.endpoint();
    without_proxy(&mut command)
        .env("AZURITE_BLOB_STORAGE_URL", url.trim_end_matches(&format!("/{ACCOUNT}")));
    let listed = run(command);
    listed.assert_success();
    assert!(listed.out.contains('a'), "{}", listed.out);
}

#[test]
#[ignore = "only in scripts/check --all"]
fn many_blobs_of_azure_are_listed_in_pages() {
    let Some(server) = azurite() else { return };
    let prefix = new_prefix();
    // A page of Azure has 5,000 blobs.
    for at in 0..5_200 {
        server.put(&format!("{prefix}/{:02}/{at}", at % 60), at.to_string());
    }
    let bucket = server.open(&prefix, &server.settings()).unwrap();
    let folders = bucket.list(&RelPath::root()).unwrap();
    assert_eq!(folders.len(), 60);
    let count: usize =
        folders.iter().map(|folder| bucket.list(&folder.name.clone().into()).unwrap().len()).sum();
    // The first one finds no catalog.
    assert_eq!((count, bucket.requests().lists), (5_200, 1 + 2));
    let file = bucket.open(&RelPath::parse("39/5199").unwrap()).unwrap();
    assert_eq!(read_range(&*file, 0, 99).unwrap(), b"5199");
}

#[test]
fn google_has_the_tree_of_a_folder() {
    let Some(server) = google() else { return };
    let (store, prefix) = (swarm(), new_prefix());
    server.copy(&store.path(), &prefix);
    assert_has_tree(&store, server.open(&prefix, &server.settings()).unwrap());
}

/// This server ignores the condition of a read, so the answer shows that the object was replaced.
#[test]
fn a_replaced_object_of_google_is_another_version() {
    let Some(server) = google() else { return };
    let prefix = new_prefix();
    let put = |bytes| server.put(&format!("{prefix}/a"), bytes);
    put(vec![b'1'; SIZE]);
    assert_versions(&server.open(&prefix, &quick(server.settings())).unwrap(), &put);
    let missing = server.open("none", &server.settings()).err().unwrap().to_string();
    assert!(missing.contains("there is no object beneath it"), "{missing}");
}
