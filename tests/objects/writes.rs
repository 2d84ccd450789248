//! Writing objects: conditions, lost answers, and files in parts.

use std::path::Path;
use std::time::Duration;

use swarmletfs_objects::{
    BucketWriter, Bytes, ObjectSettings, PutCondition, PutError, StoredVersion, UPLOAD_PART,
    content_etag,
};

use super::proxy::{Proxy, WebFault};
use super::server::{Server, new_prefix, server, settings_for, url};

fn writer(address: &str, prefix: &str) -> BucketWriter {
    let settings = ObjectSettings { deadline: Duration::from_secs(5), ..settings_for(address) };
    BucketWriter::open(Path::new(&url(prefix)), &settings).unwrap()
}

fn new_writer(server: &Server) -> BucketWriter {
    writer(&server.address(), &new_prefix())
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[test]
fn puts_have_conditions() {
    let Some(server) = server() else { return };
    let bucket = new_writer(server);
    let put = |text: &str, condition: &PutCondition| bucket.put("a/b", bytes(text), condition);
    assert_eq!(bucket.get("a/b", 9).unwrap(), None);
    let first = put("one", &PutCondition::IfAbsent).unwrap();
    assert_eq!(first.etag, content_etag(&mut &b"one"[..]).unwrap());
    assert!(matches!(put("two", &PutCondition::IfAbsent), Err(PutError::Taken)));
    // The answer of the first attempt may have been lost.
    assert_eq!(put("one", &PutCondition::IfAbsent).unwrap(), first);
    let second = put("two", &PutCondition::IfMatch(first.clone())).unwrap();
    assert!(matches!(put("3", &PutCondition::IfMatch(first)), Err(PutError::Changed)));
    assert_eq!(bucket.get("a/b", 9).unwrap(), Some((bytes("two"), second)));
    assert!(bucket.get("a/b", 2).is_err());
    let listed = bucket.list("a/").unwrap();
    assert_eq!(
        listed.iter().map(|entry| (&*entry.key, entry.size)).collect::<Vec<_>>(),
        [("a/b", 3)]
    );
    bucket.delete(["a/b".to_owned(), "a/none".to_owned()]).unwrap();
    assert_eq!(bucket.list("").unwrap(), []);
    let other = StoredVersion { etag: "\"0\"".into(), generation: None };
    assert!(matches!(put("3", &PutCondition::IfMatch(other)), Err(PutError::Changed)));
}

#[test]
fn a_mark_tells_two_writers_of_the_same_bytes_apart() {
    let Some(server) = server() else { return };
    let bucket = new_writer(server);
    let (one, two) = (bucket.with_mark("1"), bucket.with_mark("2"));
    let put = |bucket: &BucketWriter| bucket.put("a", bytes("x"), &PutCondition::IfAbsent);
    put(&one).unwrap();
    put(&one).unwrap();
    assert!(matches!(put(&two), Err(PutError::Taken)));
    assert_eq!([&one, &two].map(|bucket| bucket.is_own("a").unwrap()), [Some(true), Some(false)]);
    assert_eq!(one.is_own("b").unwrap(), None);
}

#[test]
fn a_lost_answer_of_a_put_is_no_failure() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(&server.address());
    let bucket = writer(&proxy.address(), &new_prefix()).with_mark("1");
    for condition in [PutCondition::Always, PutCondition::IfAbsent] {
        proxy.fail(WebFault::LostAnswer, 0, false);
        let key = format!("{condition:?}");
        let put = bucket.put(&key, bytes("x"), &condition);
        // It may say that it does not know; then the next attempt finds its own object.
        if put.is_err() {
            bucket.put(&key, bytes("x"), &condition).unwrap();
        }
        assert_eq!(bucket.get(&key, 9).unwrap().unwrap().0, bytes("x"));
    }
    proxy.heal();
}

#[test]
fn large_files_are_put_in_parts() {
    let Some(server) = server() else { return };
    let bucket = new_writer(server);
    for size in [0, 1, UPLOAD_PART - 1, UPLOAD_PART, 2 * UPLOAD_PART + 17] {
        let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let (_, written) = bucket.put_from("large", &mut content.as_slice()).unwrap();
        assert_eq!(written, size as u64);
        assert!(bucket.get("large", size as u64).unwrap().unwrap().0 == content, "{size}");
    }
}

/// Stores charge for the parts of an upload that nobody ended.
#[test]
fn a_failed_upload_is_aborted() {
    let Some(server) = server() else { return };
    let proxy = Proxy::start(&server.address());
    let bucket = writer(&proxy.address(), &new_prefix());
    // It begins, sends one part and completes; a failure of the last two is followed by an abort.
    for (failing, requests) in [(0, 1), (1, 3), (2, 4)] {
        proxy.fail(WebFault::Status(403), failing, false);
        bucket.put_from("large", &mut &vec![0; UPLOAD_PART][..]).unwrap_err();
        assert_eq!(proxy.heal(), requests);
        assert!(bucket.get("large", 1).unwrap().is_none());
    }
}
