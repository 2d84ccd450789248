//! What went wrong once, each under its own name: mostly cases that the reference model found, as it printed them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::formats::json_at;
use crate::reference::ops::words::*;
use crate::reference::replay;
use crate::support::{Seen, TestStore, see};

#[test]
fn a_worker_that_is_called_like_our_index_is_found_where_its_row_says() {
    replay(&[&[Plant(NamedIndex, Call1, Folder)]]);
}

#[test]
fn a_worker_that_is_called_like_the_store_s_index_is_not_listed_beside_it_under_one_name() {
    replay(&[
        &[Says(NamedIndex, Meta(Running, Mine, Run7, Undated, WithTask))],
        &[Index(1, List, OldA, Running, Mine)],
        &[Plant(AllWorkers, Itself, Folder)],
    ]);
}

#[test]
fn metadata_that_never_was_whole_is_no_record_to_keep() {
    replay(&[&[Write(OldA, Metadata, ErrorText)], &[Write(OldA, TaskText, Plain)]]);
}

#[test]
fn a_worker_without_metadata_has_no_record_to_keep_when_torn_metadata_comes() {
    replay(&[&[Plant(A, Calls, Folder)], &[Write(A, Metadata, Empty)], &[Write(A, TaskText, Plain)]]);
}

#[test]
fn a_torn_or_odd_index_keeps_no_other_index_from_being_read() {
    let worker = Says(OldA, Meta(Wordless, Mine, Alone, Undated, NoTask));
    replay(&[&[worker], &[TornIndex(0)], &[Index(1, List, OldA, Running, Mine)]]);
    replay(&[&[worker], &[Plant(NamedIndex, Itself, Folder)], &[Index(1, List, OldA, Running, Mine)]]);
}

#[test]
fn a_worker_s_own_task_goes_before_the_one_an_index_has_of_it_in_every_file() {
    replay(&[
        &[Says(A, Meta(Running, Mine, Alone, Undated, NoTask))],
        &[Index(0, List, A, Running, Mine)],
        &[Write(A, TaskText, Plain)],
    ]);
}

#[test]
fn while_metadata_is_torn_the_task_stays_what_it_was_in_every_file() {
    replay(&[
        &[Says(A, Meta(Running, Mine, Alone, Undated, WithTask)), Write(A, TaskText, Plain)],
        &[Tear(A, 128)],
        &[Write(A, TaskText, ErrorText)],
    ]);
}

#[test]
fn a_renamed_worker_is_read_anew_where_a_rename_leaves_no_trace_in_the_folder() {
    replay(&[&[Says(A, Meta(Running, Mine, Alone, Undated, WithTask))], &[Rename(A, TwinA)]]);
}

#[test]
fn a_torn_worker_that_goes_and_comes_back_has_no_record_from_before() {
    replay(&[
        &[SaysAnew(OldA, Meta(Running, Mine, Alone, Undated, WithTask))],
        &[Tear(OldA, 0)],
        &[Rename(OldA, B)],
        &[Rename(B, OldA)],
    ]);
}

#[test]
fn files_about_no_worker_follow_the_store_s_folder() {
    replay(&[&[], &[Index(1, List, A, Running, Mine)]]);
}

#[test]
fn who_may_no_longer_enter_the_store_may_no_longer_read_what_is_made_of_it() {
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
fn an_output_too_small_for_what_is_said_of_it_is_listed_by_name() {
    replay(&[&[Append(A, Call2, Binary)], &[Append(A, Call1, Long)]]);
}
