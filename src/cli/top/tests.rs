//! Keys and screens of the view, without a terminal.

use std::time::{Duration, SystemTime};

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Color;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::draw::{ColorTheme, as_text, draw};
use super::lines::TopWorker;
use super::pane::{Detail, DetailRequest, WorkerPart, clipped, width};
use super::state::{TopAction, TopState};
use crate::name::{Name, is_unprintable};
use crate::output::board::BoardGroup;
use crate::store::Time;

const NOW: u64 = 1_000_000;

fn line(id: &str, group: BoardGroup, age: i64) -> TopWorker {
    let at = Some(Time { secs: NOW as i64 - age, nanos: 0 });
    let state = match group {
        BoardGroup::NeedsYou => "asks",
        BoardGroup::Running => "running",
        BoardGroup::Ended => "ok",
    };
    TopWorker {
        name: Name::new(id).unwrap(),
        store: 0,
        group,
        id: id.into(),
        state: state.into(),
        at,
        written: at,
        failed: 0,
        suspect: 0,
        calls: "3".into(),
        tokens: 0,
        dollars: 0.0,
        draft: "",
        draft_waits: false,
        project: "cli".into(),
        branch: "main".into(),
        title: format!("title of {id}"),
        note: String::new(),
        call_start: None,
        path: format!("workers/{id}"),
    }
}

fn swarm() -> Vec<TopWorker> {
    let asks = TopWorker { note: "Which port?".into(), ..line("q1", BoardGroup::NeedsYou, 180) };
    let call =
        TopWorker { note: "repeats 7 times: Bash".into(), ..line("r1", BoardGroup::Running, 5) };
    let draft = TopWorker {
        draft: "waiting",
        draft_waits: true,
        state: "draft".into(),
        ..line("d1", BoardGroup::NeedsYou, 60)
    };
    let failed = TopWorker { failed: 4, dollars: 1.5, ..line("e2", BoardGroup::Ended, 900) };
    vec![line("e1", BoardGroup::Ended, 600), failed, call, draft, asks]
}

fn state(lines: Vec<TopWorker>) -> TopState {
    let mut state = TopState::new();
    state.set_lines(lines, String::new());
    state
}

fn press(state: &mut TopState, keys: &str) -> Option<TopAction> {
    let mut action = None;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\x1b' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        action = state.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    action
}

fn cells(state: &mut TopState, columns: u16, rows: u16, theme: ColorTheme) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    draw(state, buffer.area, &mut buffer, theme, now);
    buffer
}

fn screen(state: &mut TopState, columns: u16, rows: u16) -> String {
    as_text(&cells(state, columns, rows, ColorTheme::None))
}

fn ids(state: &mut TopState) -> Vec<String> {
    let shown = screen(state, 80, 40);
    let rows = shown.lines().skip(1).filter(|row| row.starts_with(['>', ' ', '*']));
    rows.map(|row| row.trim_start_matches(['>', ' ', '*']).split(' ').next().unwrap().to_owned())
        .collect()
}

#[test]
fn workers_who_need_a_person_come_first() {
    let shown = screen(&mut state(swarm()), 80, 24);
    let rows: Vec<&str> = shown.lines().collect();
    assert_eq!(rows.len(), 24);
    assert!(rows[1].starts_with("NEEDS YOU 2"), "{shown}");
    assert!(rows[2].starts_with(">q1   asks         3m"), "{shown}");
    assert!(rows[2].ends_with("Which port?"), "{shown}");
    assert!(rows[3].contains("waiting"), "{shown}");
    assert!(rows[4].starts_with("RUNNING 1") && rows[5].contains("repeats 7 times"), "{shown}");
    assert!(rows[6].starts_with("NEWLY ENDED 2"), "{shown}");
    assert!(rows[7].contains("e1") && rows[8].contains("$1.50"), "{shown}");
    assert!(rows[21].contains("q1 | cli | main | title of q1"), "{shown}");
    assert!(rows[23].starts_with("? help  q quit"), "{shown}");
    assert!(rows.iter().all(|row| width(row) <= 80), "{shown}");
}

#[test]
fn every_size_is_drawn() {
    let mut state = state(swarm());
    for keys in ["", "?", "/needle", "\x1b", "\n", "\x1b"] {
        press(&mut state, keys);
        for columns in [1, 2, 7, 40, 80, 300] {
            for rows in [1, 2, 3, 5, 10, 24, 80] {
                let shown = screen(&mut state, columns, rows);
                assert_eq!(shown.lines().count(), usize::from(rows));
            }
        }
    }
    let small = screen(&mut state, 40, 10);
    assert!(small.contains(">q1") && small.contains("RUNNING") && small.contains("e1"), "{small}");
    // With room for one group only, it is the one of the selected worker.
    press(&mut state, "G");
    let tiny = screen(&mut state, 40, 4);
    assert!(tiny.contains(">e2") && !tiny.contains("NEEDS"), "{tiny}");
}

#[test]
fn selection_stays_on_its_worker_and_on_the_screen() {
    let many = (0..10_000).map(|at| line(&format!("w{at:05}"), BoardGroup::Ended, at));
    let mut state = state(many.collect());
    state.set_lines(swarm(), String::new());
    assert_eq!(state.selected().unwrap().id, "q1", "without a key, it is the first worker");
    let many = (0..10_000).map(|at| line(&format!("w{at:05}"), BoardGroup::Ended, at));
    state.set_lines(many.collect(), String::new());
    press(&mut state, "jjj");
    assert_eq!(state.selected().unwrap().id, "w00003");
    let mut newer = vec![line("x", BoardGroup::Ended, -1)];
    newer.extend((0..10_000).map(|at| line(&format!("w{at:05}"), BoardGroup::Ended, at)));
    state.set_lines(newer, String::new());
    assert_eq!(state.selected().unwrap().id, "w00003");
    for keys in ["G", "g", " ", "b", "Gkk", "r"] {
        press(&mut state, keys);
        let shown = screen(&mut state, 80, 24);
        let id = &state.selected().unwrap().id;
        assert!(shown.contains(&format!(">{id}")), "{keys}: {shown}");
    }
    let begin = std::time::Instant::now();
    (0..10).for_each(|_| drop(screen(&mut state, 80, 24)));
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

#[test]
fn keys_sort_and_filter() {
    let mut state = state(swarm());
    assert_eq!(ids(&mut state), ["q1", "d1", "r1", "e1", "e2"]);
    press(&mut state, "s");
    assert_eq!(ids(&mut state), ["q1", "d1", "r1", "e2", "e1"]);
    press(&mut state, "r");
    assert_eq!(ids(&mut state), ["d1", "q1", "r1", "e1", "e2"]);
    press(&mut state, "ff");
    assert_eq!(ids(&mut state), ["r1"]);
    assert!(screen(&mut state, 80, 24).lines().next().unwrap().contains("only running  1 shown"));
    press(&mut state, "\x1btE2\n");
    assert_eq!(ids(&mut state), ["e2"]);
    press(&mut state, "t zzz");
    assert!(screen(&mut state, 80, 24).contains("no worker matches"));
    press(&mut state, "\x1b\x1b");
    assert_eq!(ids(&mut state).len(), 5);
    press(&mut state, "g\t");
    assert_eq!(state.selected().unwrap().id, "r1");
}

#[test]
fn a_key_that_does_nothing_says_why() {
    let mut state = state(swarm());
    for (keys, why) in [
        ("n", "n is off: it acts in a text; Enter opens one"),
        ("a", "a is off: q1 has no draft; `swarmletfs run` makes one"),
        ("x", "x does nothing; ? lists the keys"),
        ("2", "2 is off: it acts in a worker; Enter opens one"),
        ("\nn", "n is off: nothing was searched here; / searches"),
        ("s", "s is off: it acts in the list; Esc goes back"),
    ] {
        press(&mut state, keys);
        assert_eq!(screen(&mut state, 100, 24).lines().last(), Some(why));
    }
    press(&mut state, "\x1b?");
    let help = screen(&mut state, 100, 30);
    assert!(
        help.contains("a          apply its draft") && help.contains("(off: q1 has no"),
        "{help}"
    );
    assert_eq!(press(&mut state, "q"), None, "any key leaves the help");
    let mut empty = self::state(Vec::new());
    press(&mut empty, "\n");
    assert!(screen(&mut empty, 80, 24).contains("Enter is off: no worker is selected"));
}

#[test]
fn actions_name_their_worker() {
    let mut state = state(swarm());
    let name = |id: &str| Name::new(id).unwrap();
    assert_eq!(press(&mut state, "y"), Some(TopAction::Copy("workers/q1".into())));
    assert_eq!(press(&mut state, "ja"), Some(TopAction::Apply(name("d1"), 0)));
    assert_eq!(press(&mut state, "c"), None);
    let compare = DetailRequest::Compare(name("d1"), name("r1"));
    assert_eq!(press(&mut state, "jc"), Some(TopAction::Read(compare)));
    let open = |part| Some(TopAction::Read(DetailRequest::Worker(name("r1"), part)));
    assert_eq!(press(&mut state, "\x1b\n"), open(WorkerPart::Summary));
    assert_eq!(press(&mut state, "\t"), open(WorkerPart::Evidence));
    assert_eq!(press(&mut state, "4"), open(WorkerPart::Diff));
    let path = "workers/r1/changes.diff".to_owned();
    assert_eq!(press(&mut state, "y"), Some(TopAction::Copy(path)));
    assert_eq!(press(&mut state, "q"), None);
    assert_eq!(press(&mut state, "q"), Some(TopAction::Quit));
}

fn read(state: &mut TopState, request: DetailRequest, text: &str, found: Vec<Name>) {
    state.set_detail(&request, Ok(Detail { bytes: text.into(), found }));
}

#[test]
fn text_is_wrapped_scrolled_and_searched() {
    let mut state = state(swarm());
    let Some(TopAction::Read(request)) = press(&mut state, "\n") else { panic!() };
    assert!(screen(&mut state, 40, 10).contains("reading…"));
    let lines = (0..100).map(|at| format!("line {at} {}\n", "long ".repeat(at % 3 * 10)));
    read(&mut state, request.clone(), &lines.collect::<String>(), Vec::new());
    let shown = screen(&mut state, 40, 10);
    assert!(shown.starts_with("q1  1-8 of 199  [summary] evidence"), "{shown}");
    press(&mut state, "/LINE 50 \n");
    assert!(screen(&mut state, 40, 10).lines().nth(1).unwrap().starts_with("line 50 "));
    press(&mut state, "/line 7\nnn");
    let shown = screen(&mut state, 40, 10);
    assert!(shown.lines().nth(1).unwrap().starts_with("line 72"), "{shown}");
    press(&mut state, "N");
    assert!(screen(&mut state, 80, 10).lines().nth(1).unwrap().starts_with("line 71 "));
    press(&mut state, "/nowhere\n");
    assert!(screen(&mut state, 80, 10).contains("nowhere is not in this text"));
    press(&mut state, "G");
    assert!(screen(&mut state, 80, 10).lines().nth(8).unwrap().starts_with("line 99"));
    // A text that was read for another pane is dropped; one that grows keeps its place.
    press(&mut state, "gj");
    let other = DetailRequest::Search("x".into());
    read(&mut state, other, "other", Vec::new());
    read(&mut state, request, &"again\n".repeat(200), Vec::new());
    assert!(screen(&mut state, 80, 10).contains("2-9 of 200"));
}

#[test]
fn a_worker_that_writes_is_read_again() {
    let mut state = state(swarm());
    let Some(TopAction::Read(request)) = press(&mut state, "\n") else { panic!() };
    read(&mut state, request.clone(), "text", Vec::new());
    assert_eq!(state.set_lines(swarm(), String::new()), None);
    let mut newer = swarm();
    newer.iter_mut().for_each(|line| line.written = Some(Time { secs: NOW as i64, nanos: 0 }));
    assert_eq!(state.set_lines(newer, String::new()), Some(TopAction::Read(request)));
}

#[test]
fn search_lists_the_workers_that_it_found() {
    let mut state = state(swarm());
    let Some(TopAction::Read(request)) = press(&mut state, "/disk full\n") else { panic!() };
    assert_eq!(request, DetailRequest::Search("disk full".into()));
    press(&mut state, "\n");
    assert!(screen(&mut state, 80, 24).contains("Enter is off"), "nothing was found yet");
    read(&mut state, request, "passages", vec![Name::new("e1").unwrap()]);
    press(&mut state, "\n");
    assert_eq!(ids(&mut state), ["e1"]);
    assert!(screen(&mut state, 80, 24).contains("found by disk full"));
}

#[test]
fn hostile_text_stays_in_its_cell() {
    let hostile = "a\x1b[31m\r\n\u{202e}b\u{200b}\u{7}\u{9b}2Jc\u{301}\u{301}漢字👩‍👩‍👧";
    let mut bad = line("h1", BoardGroup::Ended, 5);
    for text in [&mut bad.title, &mut bad.note, &mut bad.project, &mut bad.branch, &mut bad.state] {
        *text = swarmletfs_base::text::clean::one_line(&hostile.repeat(9), 300);
    }
    let mut state = state(vec![bad, line("h2", BoardGroup::Ended, 6)]);
    for columns in [30, 80, 81, 120] {
        let shown = screen(&mut state, columns, 24);
        assert!(!shown.contains(|c| c != '\n' && is_unprintable(c)), "{shown:?}");
        assert!(shown.lines().all(|row| width(row) <= usize::from(columns)), "{shown}");
    }
    let Some(TopAction::Read(request)) = press(&mut state, "\n") else { panic!() };
    read(&mut state, request, hostile, Vec::new());
    let shown = screen(&mut state, 80, 24);
    assert!(!shown.contains(|c| c != '\n' && is_unprintable(c)), "{shown:?}");
    assert!(shown.contains("a\\u{1b}[31m\n\\u{202e}b"), "{shown}");
    press(&mut state, "/\u{202e}\x1b");
    assert!(!screen(&mut state, 80, 24).contains('\u{202e}'));
}

#[test]
fn clipped_text_has_at_most_its_columns() {
    for (text, max, cut) in [
        ("plain", 5, "plain"),
        ("plain", 4, "pla…"),
        ("漢字漢", 5, "漢字…"),
        ("漢字漢", 4, "漢…"),
        ("ab", 0, ""),
        ("ab", 1, "…"),
    ] {
        assert_eq!(clipped(text, max), cut);
    }
}

#[test]
fn themes_never_need_a_color() {
    let mut failed = line("f1", BoardGroup::Ended, 5);
    failed.state = "failed".into();
    let mut state = state(vec![failed, line("o1", BoardGroup::Ended, 6)]);
    let mut colors = |theme| {
        let buffer = cells(&mut state, 80, 24, theme);
        let found: Vec<Color> = buffer.content.iter().map(|cell| cell.fg).collect();
        (as_text(&buffer), found)
    };
    let (plain, none) = colors(ColorTheme::None);
    assert!(none.iter().all(|color| *color == Color::Reset));
    assert!(plain.contains("failed") && plain.contains(">f1"), "{plain}");
    let (text, default) = colors(ColorTheme::Default);
    assert!(default.contains(&Color::Red) && default.contains(&Color::Green));
    let (same, blind) = colors(ColorTheme::ColorBlind);
    assert!(!blind.contains(&Color::Red) && !blind.contains(&Color::Green));
    assert!(blind.contains(&Color::Indexed(208)) && blind.contains(&Color::Indexed(39)));
    assert_eq!((&text, &same), (&plain, &plain));
}
