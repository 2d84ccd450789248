//! The generated swarm of the benchmarks and the load example: the tree shows it as generated, and
//! its checks accept correct content and reject all other.

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
fn tree_shows_the_swarm_as_generated() {
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
    let index: serde_json::Value =
        serde_json::from_slice(see(&tree, "index.json").unwrap().bytes()).unwrap();
    assert_eq!(index["total_workers"], 7);
    assert_eq!(index["active_workers"], (0..7).filter(|worker| SWARM.is_running(*worker)).count());
}

#[test]
fn check_accepts_every_version_of_a_file_and_nothing_else() {
    for part in SWARM.parts() {
        let (old, new) = (SWARM.bytes(3, part, 4), SWARM.bytes(3, part, 5));
        assert_ne!(old, new, "{part:?}");
        assert_eq!(
            (SWARM.check(3, part, &old), SWARM.check(3, part, &new)),
            (Ok(()), Ok(())),
            "{part:?}"
        );
        let (half, longer) = (old.len() / 2, [old.as_slice(), b"x"].concat());
        let mixed = [&old[..half], new.get(half..).unwrap_or_default()].concat();
        let zeros = [&old[..half], &vec![0; old.len() - half]].concat();
        let foreign = SWARM.bytes(4, part, 4);
        let mut wrong = vec![longer, mixed, zeros, foreign];
        if part == Part::Thread {
            // A prefix of a growing file is correct, and so is a mix that is a longer prefix.
            assert_eq!(SWARM.check(3, part, &old[..half]), Ok(()));
            wrong.remove(1);
        } else {
            wrong.extend([old[..half].to_vec(), Vec::new()]);
        }
        // If two versions differ in one half only, their mix equals one of them.
        wrong.retain(|bytes| *bytes != old && *bytes != new);
        for (index, bytes) in wrong.iter().enumerate() {
            assert!(
                SWARM.check(3, part, bytes).is_err(),
                "{part:?}: wrong content {index} is accepted"
            );
        }
    }
}

#[test]
fn thread_grows_by_its_next_message() {
    let thread = |version| SWARM.bytes(2, Part::Thread, version);
    assert_eq!([thread(0), SWARM.next_message(2, &thread(0))].concat(), thread(1));
}

#[test]
fn torn_evidence_is_rejected() {
    let (store, path) = (store(), "workers/worker-00001/evidence.txt");
    let first = see(&store.tree(), path).unwrap().bytes().to_vec();
    fs::write(
        store.at("workers/worker-00001/tool_calls/001_run_command.txt"),
        "Error: it failed\n",
    )
    .unwrap();
    let second = see(&store.tree(), path).unwrap().bytes().to_vec();
    assert!(check_frame(&first).is_ok() && check_frame(&second).is_ok());
    let half = first.len().min(second.len()) / 2;
    for torn in [&first[..half], &first[half..], &[&first[..half], &second[half..]].concat()] {
        assert!(check_frame(torn).is_err());
    }
}
