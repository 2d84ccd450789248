//! Inspects the places where programs leave their sessions, apart from the stores of the view:
//! their contents, and whether they can be read.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::catalog::{Freshness, Source};
use crate::cli::doctor::DoctorArgs;
use crate::cli::session_places::{self, SessionPlace};
use crate::cli::terminal::{display_path, shell_quote};
use crate::cli::{discover, probe};
use crate::text::count;
use crate::view::{Filter, View};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PlaceFacts {
    program: String,
    path: String,
    /// Name of the format of its sessions; null if they cannot be read yet.
    format: Option<String>,
    is_store: bool,
    /// Number of workers; null if the place is one of the stores or cannot be read.
    workers: Option<usize>,
}

/// Returns true if a place answers and holds sessions that can be read.
pub(super) fn has_sessions(place: &SessionPlace) -> bool {
    answers(&place.path) && discover::has_sessions(place)
}

/// Inspects the places that exist. `stores` are the paths of the stores, as the report shows them.
pub(super) fn inspect(stores: &[&str], arguments: &DoctorArgs) -> (Vec<PlaceFacts>, Vec<Finding>) {
    let (mut facts, mut findings) = (Vec::new(), Vec::new());
    for place in session_places::all() {
        // A directory that does not answer could not be used as a store either.
        if !answers(&place.path) || !place.path.is_dir() {
            continue;
        }
        let (found, more) = inspect_place(&place, stores, arguments);
        let path = found.path.clone();
        facts.push(found);
        findings.extend(more.into_iter().map(|finding| finding.about(&path)));
    }
    (facts, findings)
}

fn answers(path: &Path) -> bool {
    probe::check_alive(path).is_ok()
}

fn inspect_place(
    place: &SessionPlace,
    stores: &[&str],
    arguments: &DoctorArgs,
) -> (PlaceFacts, Vec<Finding>) {
    let SessionPlace { program, format, path } = place;
    let resolved = path.canonicalize().unwrap_or_else(|_| path.clone());
    let shown = display_path(&resolved);
    let mut facts = PlaceFacts {
        program: (*program).into(),
        format: format.map(|format| format.name.into()),
        is_store: stores.contains(&shown.as_str()),
        workers: None,
        path: shown,
    };
    let Some(format) = *format else {
        let note = format!("{program}: found {}, not read yet", facts.path);
        return (facts, vec![Finding::note("places", "unread_program", note)]);
    };
    // The findings about the stores cover this place.
    if facts.is_store {
        return (facts, Vec::new());
    }
    if !discover::has_sessions(place) {
        let none = format!("{program}: no sessions in {}", facts.path);
        return (facts, vec![Finding::ok("places", "no_sessions", none)]);
    }
    let filter = Filter { owner: arguments.owner.clone(), run: None };
    let view = Source::open_as(&resolved, Some(format))
        .ok()
        .and_then(|source| View::new(vec![source], Freshness::default(), filter).ok());
    let Some(view) = view else {
        let note = format!("{program}: cannot read {}", facts.path);
        return (facts, vec![Finding::note("places", "unreadable_sessions", note)]);
    };
    let workers = view.visible().members.len();
    let message = format!(
        "{program}: {} in {}, not shown beside the store",
        count(workers, "worker"),
        facts.path
    );
    let remedy = format!("`--store {}` shows them", shell_quote(&resolved));
    facts.workers = Some(workers);
    (facts, vec![Finding::ok("places", "sessions", message).with_remedy(remedy)])
}
