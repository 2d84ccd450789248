//! The same answers through the command line and a mount, and cursors that lead from one to the other.

use serde_json::json;

use super::Answer;
use crate::cli::program::{run, swarmletfs};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// What the command line answers.
#[track_caller]
fn typed_since(store: &TestStore, cursor: &str, more: &[&str]) -> String {
    let mut command = swarmletfs(["since", cursor, "--store"]);
    command.arg(store.path()).args(more);
    let done = run(command);
    let said = format!("swarmletfs: the store is {} (named by --store)\n", store.path().display());
    assert_eq!(done.assert_success().err, said);
    done.out
}

fn swarm(workers: u32) -> TestStore {
    let store = TestStore::new();
    for number in 0..workers {
        let owner = if number % 2 == 0 { 7 } else { 8 };
        store.worker(&format!("w{number}"), json!({"owner_id": owner, "run_id": number % 3, "status": "running"}));
        store.call(&format!("w{number}"), 1, "sh", "fine");
    }
    store
}

#[test]
fn both_doors_tell_the_same_bytes_of_what_changed() {
    needs_fuse!();
    let store = swarm(150);
    for more in [&[][..], &["--owner", "7"], &["--owner", "7", "--run", "0"], &["--run", "nobody"]] {
        let mount = Mount::with(&store.path(), more);
        let mut cursor = "0".to_owned();
        for _ in 0..20 {
            let answer = mount.text(&format!("since/{cursor}"));
            assert_eq!(answer, typed_since(&store, &cursor, more), "{more:?}: since {cursor}");
            let next = Answer::of(&answer).next;
            if next == cursor {
                break;
            }
            cursor = next;
        }
        assert!(cursor.starts_with(|c: char| c.is_ascii_digit()) && cursor != "0");
        assert_eq!(mount.text("since/now"), format!("{cursor}\n"));
        assert_eq!(typed_since(&store, "now", more), format!("{cursor}\n"));
    }
}

#[test]
fn a_cursor_leads_on_in_another_process_another_mount_and_through_the_other_door() {
    needs_fuse!();
    let store = swarm(30);
    let told = |answer: &str, number: u32| answer.contains(&format!("002_new.txt ({number} B)"));
    let mut cursor = Mount::new(&store.path()).text("since/now").trim_end().to_owned();
    for number in 1..4 {
        store.call("w5", 2, "new", "x".repeat(number));
        let (typed, next) = {
            let answer = typed_since(&store, &cursor, &[]);
            (answer.clone(), Answer::of(&answer).next)
        };
        let mount = Mount::new(&store.path());
        let mounted = mount.text(&format!("since/{cursor}"));
        assert!(told(&typed, number as u32) && told(&mounted, number as u32), "{typed}\n{mounted}");
        assert!(Answer::of(&mount.text(&format!("since/{next}"))).is_quiet());
        cursor = Answer::of(&mounted).next;
        assert!(Answer::of(&typed_since(&store, &cursor, &[])).is_quiet());
    }
}

#[test]
fn a_mount_tells_what_changed_while_it_lasts() {
    needs_fuse!();
    let store = swarm(30);
    let mount = Mount::new(&store.path());
    let cursor = mount.text("since/now").trim_end().to_owned();
    assert!(Answer::of(&mount.text(&format!("since/{cursor}"))).is_quiet());
    store.worker("w3", json!({"owner_id": 8, "run_id": 0, "status": "failed"}));
    std::fs::remove_dir_all(store.at("workers/w4")).unwrap();
    // No look is older than the question, however short a moment ago the last one was.
    let answer = Answer::of(&mount.text(&format!("since/{cursor}")));
    assert_eq!(answer.says("w3"), Some(["finished", "failed"]), "{answer:#?}");
    assert!(answer.text.lines().any(|line| line.starts_with("gone: ") && line.ends_with("1 worker")), "{answer:#?}");
    assert!(Answer::of(&mount.text(&format!("since/{}", answer.next))).is_quiet());
    assert_eq!(mount.list("since"), ["0", "now"]);
    assert!(!mount.list("").contains(&"since".to_owned()));
    eventually("it is quiet", || Answer::of(&mount.text(&format!("since/{}", answer.next))).is_quiet().then_some(()));
}
