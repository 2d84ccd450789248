//! The command line and a mount give equal answers, and cursors of one work in the other.

use serde_json::json;

use super::Answer;
use crate::cli::program::{run, swarmletfs};
use crate::mount::eventually;
use crate::needs_fuse;
use crate::support::{Mount, TestStore};

/// Returns the answer of the command line.
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
        store.worker(
            &format!("w{number}"),
            json!({"owner_id": owner, "run_id": number % 3, "status": "running"}),
        );
        store.call(&format!("w{number}"), 1, "sh", "fine");
    }
    store
}

/// Promise: The mount and the command line return the same bytes.
#[test]
fn mount_and_command_line_report_the_same_bytes() {
    needs_fuse!();
    let store = swarm(150);
    for more in [&[][..], &["--owner", "7"], &["--owner", "7", "--run", "0"], &["--run", "nobody"]]
    {
        let mount = Mount::with(&store.path(), more);
        let mut cursor = "0".to_owned();
        for _ in 0..20 {
            let answer = mount.text(&format!("since/{cursor}"));
            assert_eq!(answer, typed_since(&store, &cursor, more), "{more:?}: since {cursor}");
            let next = Answer::parse(&answer).next;
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

/// Promise: A cursor stays valid in another process, in another mount, and between the mount and
/// the command line.
#[test]
fn cursors_are_valid_across_processes_mounts_and_interfaces() {
    needs_fuse!();
    let store = swarm(30);
    let told = |answer: &str, number: u32| answer.contains(&format!("002_new.txt ({number} B)"));
    let mut cursor = Mount::new(&store.path()).text("since/now").trim_end().to_owned();
    for number in 1..4 {
        store.call("w5", 2, "new", "x".repeat(number));
        let (typed, next) = {
            let answer = typed_since(&store, &cursor, &[]);
            (answer.clone(), Answer::parse(&answer).next)
        };
        let mount = Mount::new(&store.path());
        let mounted = mount.text(&format!("since/{cursor}"));
        assert!(told(&typed, number as u32) && told(&mounted, number as u32), "{typed}\n{mounted}");
        assert!(Answer::parse(&mount.text(&format!("since/{next}"))).has_no_changes());
        cursor = Answer::parse(&mounted).next;
        assert!(Answer::parse(&typed_since(&store, &cursor, &[])).has_no_changes());
    }
}

/// Promise: A mount reports changes while it is mounted.
#[test]
fn mount_reports_changes_while_mounted() {
    needs_fuse!();
    let store = swarm(30);
    let mount = Mount::new(&store.path());
    let cursor = mount.text("since/now").trim_end().to_owned();
    assert!(Answer::parse(&mount.text(&format!("since/{cursor}"))).has_no_changes());
    store.worker("w3", json!({"owner_id": 8, "run_id": 0, "status": "failed"}));
    std::fs::remove_dir_all(store.at("workers/w4")).unwrap();
    // Every answer reads the store anew, however recent the previous one.
    let answer = Answer::parse(&mount.text(&format!("since/{cursor}")));
    assert_eq!(answer.change_and_status("w3"), Some(["finished", "failed"]), "{answer:#?}");
    assert!(
        answer.text.lines().any(|line| line.starts_with("gone: ") && line.ends_with("1 worker")),
        "{answer:#?}"
    );
    assert!(Answer::parse(&mount.text(&format!("since/{}", answer.next))).has_no_changes());
    assert_eq!(mount.list("since"), ["0", "now"]);
    assert!(!mount.list("").contains(&"since".to_owned()));
    eventually("no more changes", || {
        Answer::parse(&mount.text(&format!("since/{}", answer.next))).has_no_changes().then_some(())
    });
}
