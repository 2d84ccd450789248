//! What it says of mounts: which answer, which are dead, which hang, and the command that clears them.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Alone, finding};
use crate::cli::program::{
    LIMIT, Yard, as_nobody, ended, in_foreground, mount, open_up, ours_at, plain, run, small_store, tmpfs,
};
use crate::needs_fuse;
use crate::support::mount::PROGRAM;

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn mounts_are_told_of_as_they_are_and_the_cure_of_a_dead_one_clears_it() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep) = (store.path(), yard.path());
    let (alive, dead, covered) = (yard.folder("alive"), yard.folder("it's dead"), yard.folder("covered"));
    mount(&path, &alive, &[]).fine();
    let mut child = in_foreground(&path, &dead, &yard.at("log"));
    child.kill().unwrap();
    child.wait().unwrap();
    mount(&path, &covered, &[]).fine();
    if tmpfs(&covered).is_none() {
        return;
    }
    let Some(told) = Alone::new(&keep).json(&[&path]) else { return };
    let states = [(&alive, "alive"), (&dead, "dead"), (&covered, "covered")];
    let expected: Vec<_> = states.iter().map(|(point, state)| json!({"point": point, "state": state})).collect();
    assert_eq!(told["mounts"], json!(expected), "{told:#}");
    for ((point, state), level) in states.iter().zip(["ok", "problem", "note"]) {
        assert_eq!(finding(&told, state, level, &[shown(point)])["about"], json!(point));
    }
    let cure = finding(&told, "dead", "problem", &[])["cure"].as_str().unwrap().to_owned();
    let command = cure.split('`').nth(1).unwrap().strip_prefix("swarmletfs ").unwrap();
    run(plain("bash", ["-c", &format!("{PROGRAM} {command}")])).fine();
    assert_eq!(ours_at(&dead), 0);
    assert_eq!(Alone::new(&keep).json(&[&path]).unwrap()["problems"], 0);
}

#[test]
fn several_mounts_that_hang_cost_no_more_time_than_one() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep) = (store.path(), yard.path());
    let points = [yard.folder("a"), yard.folder("b"), yard.folder("c")];
    let mut children: Vec<_> = points.iter().map(|point| in_foreground(&path, point, &yard.at("log"))).collect();
    children.iter().for_each(|child| kill_process(Pid::from_child(child), Signal::STOP).unwrap());
    // One after the other they would take longer than any command may.
    let told = Alone::new(&keep).json(&[&path]);
    children.iter().for_each(|child| kill_process(Pid::from_child(child), Signal::CONT).unwrap());
    drop(yard);
    for child in &mut children {
        assert!(ended(child, LIMIT).is_some());
    }
    let Some(told) = told else { return };
    let hung: Vec<_> = points.iter().map(|point| json!({"point": point, "state": "hung"})).collect();
    assert_eq!(told["mounts"], json!(hung), "{told:#}");
    assert_eq!(told["problems"], 3);
    assert_eq!(told["stores"][0]["workers"]["total"], 1, "the rest is told all the same");
}

#[test]
fn the_mount_of_another_user_is_no_problem() {
    needs_fuse!();
    let (store, yard) = (small_store(), Yard::new());
    let (path, keep, point) = (store.path(), yard.path(), yard.folder("mnt"));
    [path.parent().unwrap(), &keep].into_iter().for_each(open_up);
    mount(&path, &point, &[]).fine();
    let Some(told) = (Alone { before: as_nobody(&[]), ..Alone::new(&keep) }).json(&[&path]) else { return };
    finding(&told, "private", "note", &[shown(&point), "another user"]);
    assert_eq!(told["mounts"], json!([{"point": point, "state": "private"}]));
}
