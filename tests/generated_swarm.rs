//! The swarm that benches and soaks read: what is made is what is seen, and what is wrong is told from what is right.

use std::fs;

use crate::support::frame::check_frame;
use crate::support::swarm::{Part, Swarm};
use crate::support::{TestStore, see};

const SWARM: Swarm = Swarm { workers: 7, calls: 6, bytes: 900, seed: 5 };

fn store() -> TestStore {
    let store = TestStore::new();
    SWARM.make(&store.path()).unwrap();
    store
}

#[test]
fn a_made_up_swarm_is_seen_as_it_was_made() {
    let store = store();
    let tree = store.tree();
    for worker in 0..SWARM.workers {
        for part in SWARM.parts() {
            let path = format!("workers/{}/{}", SWARM.id(worker), part.path());
            let seen = see(&tree, &path).unwrap();
            assert_eq!(SWARM.check(worker, part, seen.bytes()), Ok(()), "{path}");
        }
        let evidence = see(&tree, format!("workers/{}/evidence.txt", SWARM.id(worker))).unwrap();
        assert!(check_frame(evidence.bytes()).unwrap().contains("Calls: 6 "));
    }
    let index: serde_json::Value = serde_json::from_slice(see(&tree, "index.json").unwrap().bytes()).unwrap();
    assert_eq!(index["total_workers"], 7);
    assert_eq!(index["active_workers"], (0..7).filter(|worker| SWARM.is_running(*worker)).count());
}

#[test]
fn every_version_of_a_file_is_right_and_nothing_else_is() {
    for part in SWARM.parts() {
        let (old, new) = (SWARM.bytes(3, part, 4), SWARM.bytes(3, part, 5));
        assert_ne!(old, new, "{part:?}");
        assert_eq!((SWARM.check(3, part, &old), SWARM.check(3, part, &new)), (Ok(()), Ok(())), "{part:?}");
        let (half, more) = (old.len() / 2, [old.as_slice(), b"x"].concat());
        let mixed = [&old[..half], new.get(half..).unwrap_or_default()].concat();
        let zeros = [&old[..half], &vec![0; old.len() - half]].concat();
        let of_another = SWARM.bytes(4, part, 4);
        let mut wrong = vec![more, mixed, zeros, of_another];
        if part == Part::Thread {
            // The first part of a file that grows is right, and so is more of it.
            assert_eq!(SWARM.check(3, part, &old[..half]), Ok(()));
            wrong.remove(1);
        } else {
            wrong.extend([old[..half].to_vec(), Vec::new()]);
        }
        // Two versions of a short file may differ in one half alone, and a mix is then one of them.
        wrong.retain(|bytes| *bytes != old && *bytes != new);
        for (at, bytes) in wrong.iter().enumerate() {
            assert!(SWARM.check(3, part, bytes).is_err(), "{part:?}, {at}");
        }
    }
}

#[test]
fn a_thread_grows_by_the_line_that_comes_next() {
    let grown = |version| SWARM.bytes(2, Part::Thread, version);
    assert_eq!([grown(0), SWARM.next_message(2, &grown(0))].concat(), grown(1));
}

#[test]
fn a_torn_evidence_is_told_from_a_whole_one() {
    let (store, path) = (store(), "workers/worker-00001/evidence.txt");
    let first = see(&store.tree(), path).unwrap().bytes().to_vec();
    fs::write(store.at("workers/worker-00001/tool_calls/001_run_command.txt"), "Error: it failed\n").unwrap();
    let second = see(&store.tree(), path).unwrap().bytes().to_vec();
    assert!(check_frame(&first).is_ok() && check_frame(&second).is_ok());
    let half = first.len().min(second.len()) / 2;
    for torn in [&first[..half], &first[half..], &[&first[..half], &second[half..]].concat()] {
        assert!(check_frame(torn).is_err());
    }
}
