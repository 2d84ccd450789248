//! Bugs that were fixed, mostly as sequences of operations that the reference model printed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::formats::json_at;
use crate::reference::ops::words::*;
use crate::reference::replay;
use crate::support::{Seen, TestStore, see};

#[test]
fn worker_named_like_the_generated_index_is_found_at_the_path_of_its_row() {
    replay(&[&[Plant(NamedIndex, Call1, Folder)]]);
}

#[test]
fn worker_and_index_of_the_same_name_are_listed_under_different_names() {
    replay(&[
        &[Says(NamedIndex, Meta(Running, Mine, Run7, Undated, WithTask))],
        &[Index(1, List, OldA, Running, Mine)],
        &[Plant(AllWorkers, Itself, Folder)],
    ]);
}

#[test]
fn metadata_that_was_never_valid_leaves_no_record() {
    replay(&[&[Write(OldA, Metadata, ErrorText)], &[Write(OldA, TaskText, Plain)]]);
}

#[test]
fn torn_first_metadata_leaves_no_record() {
    replay(&[
        &[Plant(A, Calls, Folder)],
        &[Write(A, Metadata, Empty)],
        &[Write(A, TaskText, Plain)],
    ]);
}

#[test]
fn torn_or_odd_index_does_not_hide_another_index() {
    let worker = Says(OldA, Meta(Wordless, Mine, Alone, Undated, NoTask));
    replay(&[&[worker], &[TornIndex(0)], &[Index(1, List, OldA, Running, Mine)]]);
    replay(&[
        &[worker],
        &[Plant(NamedIndex, Itself, Folder)],
        &[Index(1, List, OldA, Running, Mine)],
    ]);
}

#[test]
fn torn_index_says_nothing_of_a_directory_that_was_away() {
    let again = Says(OldA, Meta(Running, Theirs, Alone, Undated, WithTask));
    replay(&[
        &[Index(1, List, A, Running, Theirs)],
        &[Replace(OldA, Call1, Plain)],
        &[Rename(OldA, A)],
        &[TornIndex(1), again],
    ]);
}

#[test]
fn own_task_overrides_the_task_of_an_index_in_every_file() {
    replay(&[
        &[Says(A, Meta(Running, Mine, Alone, Undated, NoTask))],
        &[Index(0, List, A, Running, Mine)],
        &[Write(A, TaskText, Plain)],
    ]);
}

#[test]
fn torn_metadata_keeps_the_task_in_every_file() {
    replay(&[
        &[Says(A, Meta(Running, Mine, Alone, Undated, WithTask)), Write(A, TaskText, Plain)],
        &[Tear(A, 128)],
        &[Write(A, TaskText, ErrorText)],
    ]);
}

#[test]
fn renamed_worker_is_read_again_even_if_its_directory_is_unchanged() {
    replay(&[&[Says(A, Meta(Running, Mine, Alone, Undated, WithTask))], &[Rename(A, TwinA)]]);
}

#[test]
fn torn_worker_that_was_removed_and_returned_has_no_old_record() {
    replay(&[
        &[SaysAnew(OldA, Meta(Running, Mine, Alone, Undated, WithTask))],
        &[Tear(OldA, 0)],
        &[Rename(OldA, B)],
        &[Rename(B, OldA)],
    ]);
}

#[test]
fn attributes_without_workers_follow_the_store_directory() {
    replay(&[&[], &[Index(1, List, A, Running, Mine)]]);
}

#[test]
fn generated_files_are_unreadable_without_access_to_the_store() {
    let store = TestStore::new();
    store.worker("w", json!({}));
    let tree = store.tree();
    let mode = |mode: u32| {
        fs::set_permissions(store.path(), fs::Permissions::from_mode(mode)).unwrap();
        match see(&tree, "index.json").unwrap() {
            Seen::File { attr, .. } => attr.0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((mode(0o755), mode(0o700), mode(0o750)), (0o444, 0o400, 0o440));
    assert_eq!(json_at(&tree, "index.json")["total_workers"], 1);
}

#[test]
fn output_shorter_than_its_note_is_listed_by_name() {
    replay(&[&[Append(A, Call2, Binary)], &[Append(A, Call1, Long)]]);
}

#[test]
fn worker_with_a_damaged_line_of_metrics_is_not_ok() {
    replay(&[
        &[Write(TwinA, Call1, Fine)],
        &[Says(TwinA, Meta(Success, Mine, Alone, Undated, WithTask))],
        &[Write(TwinA, Metrics, Long)],
    ]);
}
