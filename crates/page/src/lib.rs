//! The page for people: one HTML file that shows workers and makes no request.
//!
//! `web` holds its source in TypeScript, from which `scripts/page` builds `assets`. The data is in
//! the page as JSON, compressed and in base64, in elements that no browser runs: the overview with
//! a row for each worker, marks for the timeline, and a panel about each worker, which is read only
//! when it is opened. Worker text is never markup: the script adds it as text.
//!
//! The size of a page is bounded by the number of its workers. Panels share the room that the rest
//! leaves; workers that need a person get more of it.

pub mod live;

use std::io::Write;
use std::sync::LazyLock;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustix::io::Errno;
use serde::Serialize;
use sha2::{Digest, Sha256};

use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::parallel::parallel_map;
use swarmletfs_base::unicode::{Visibility, WritingScanner};
use swarmletfs_tree::analysis::attention::AttentionLevel;
use swarmletfs_tree::analysis::worker_digest::WorkerRow;
use swarmletfs_tree::output::overview::OverviewJson;
use swarmletfs_tree::output::panel::CallMarks;
use swarmletfs_tree::render::Renderer;
use swarmletfs_tree::render::overview::Overview;
use swarmletfs_tree::route::Scope;

const SCRIPT: &str = include_str!("../assets/page.js");
const STYLE: &str = include_str!("../assets/page.css");

/// Largest size of a page of up to [`SMALL`] workers, in bytes.
const SMALL_MAX: usize = 2_000_000;
const SMALL: usize = 200;
/// Room for each further worker, in bytes: 40 MB for 10,000 workers.
const WORKER_MAX: usize = 3_870;
/// Largest size of a compressed panel, in bytes.
const PANEL_MAX: usize = 96 << 10;
/// Size of a panel's data as a multiple of the compressed size that it may have.
const RATIO: usize = 4;
/// Attempts to fit a panel into its share; each has less room.
const ATTEMPTS: usize = 4;
/// Number of panels that are made before the room is divided anew.
const BATCH: usize = 64;
/// Marks of calls on the timeline: of all workers, and of one.
const TICKS_MAX: usize = 400_000;
/// Sizes of a mark and of the counts of a tool in a page, in bytes, at most.
const TICK_SIZE: usize = 10;
const TOOL_SIZE: usize = 12;
const WORKER_TICKS: std::ops::RangeInclusive<usize> = 20..=400;

/// The page of the workers of a scope.
pub struct PageRequest<'a> {
    pub scope: &'a Scope,
    /// Names the scope, such as `Run 48`.
    pub title: &'a str,
    /// The command that shows the same without a mount, up to the name of the file.
    pub options: &'a str,
}

/// A page, and the number of its workers.
pub struct BuiltPage {
    pub html: Vec<u8>,
    pub workers: usize,
    /// Number of panels for which there was no room.
    pub panels_left_out: usize,
}

#[derive(Serialize)]
struct PageData<'a> {
    title: &'a str,
    options: &'a str,
    version: &'static str,
    /// Time of the page, in milliseconds since 1970.
    now: u128,
    #[serde(flatten)]
    overview: &'a OverviewJson,
}

impl<'a> PageData<'a> {
    fn new(title: &'a str, options: &'a str, overview: &'a OverviewJson) -> PageData<'a> {
        let version = env!("CARGO_PKG_VERSION");
        PageData { title, options, version, now: now_ms(), overview }
    }
}

fn now_ms() -> u128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map(|time| time.as_millis()).unwrap_or_default()
}

/// Makes the page.
///
/// # Errors
///
/// The scope is not in the view, or the states of its workers cannot be read.
pub fn page(renderer: &Renderer, request: &PageRequest<'_>) -> Result<BuiltPage> {
    let Overview { json, rows } = renderer.overview(request.scope)?;
    let overview = encoded(&PageData::new(request.title, request.options, &json))?;
    let max = SMALL_MAX + WORKER_MAX * rows.len().saturating_sub(SMALL);
    let used = SCRIPT.len() + STYLE.len() + overview.len() + HEAD_MAX;
    let (panels, marks) = panels(renderer, &rows, max.saturating_sub(used))?;
    let marks = encoded(&marks)?;
    let left_out = panels.iter().filter(|panel| panel.is_empty()).count();
    Ok(BuiltPage {
        html: html(request.title, &overview, &marks, &panels),
        workers: rows.len(),
        panels_left_out: left_out,
    })
}

/// Size of everything in a page that is not counted otherwise, in bytes.
const HEAD_MAX: usize = 4_096;

/// Returns the panels of `rows` in at most `room` bytes together with their calls in short. A
/// panel that does not fit is empty.
fn panels(
    renderer: &Renderer,
    rows: &[WorkerRow],
    room: usize,
) -> Result<(Vec<String>, Vec<CallMarks>)> {
    let settings = renderer.settings();
    settings.start_stage(rows.len());
    let ticks_max = TICKS_MAX
        .checked_div(rows.len())
        .unwrap_or_default()
        .clamp(*WORKER_TICKS.start(), *WORKER_TICKS.end());
    let mut weights: usize = rows.iter().map(weight).sum();
    let mut left = room;
    let (mut panels, mut all_marks) = (Vec::new(), Vec::new());
    for batch in rows.chunks(BATCH) {
        let part = left.checked_div(weights.max(1)).unwrap_or_default();
        let made = parallel_map(batch, |row| {
            let made = panel(renderer, row, (part * weight(row)).min(PANEL_MAX), ticks_max);
            settings.count_one();
            made
        });
        weights -= batch.iter().map(weight).sum::<usize>();
        for made in made {
            let (panel, marks) = made?;
            let size = marks.ticks.len() * TICK_SIZE + marks.tools.len() * TOOL_SIZE;
            left = left.saturating_sub(panel.len() + 1 + size);
            panels.push(panel);
            all_marks.push(marks);
        }
    }
    Ok((panels, all_marks))
}

/// Returns the share of a worker in the room for panels, relative to others.
fn weight(row: &WorkerRow) -> usize {
    match row.digest.as_ref().map(|digest| digest.attention.level()) {
        Some(AttentionLevel::High) => 4,
        Some(AttentionLevel::Low) => 2,
        _ => 1,
    }
}

/// Returns the panel about a worker in at most `share` bytes, or an empty one if it does not fit.
fn panel(
    renderer: &Renderer,
    row: &WorkerRow,
    share: usize,
    ticks_max: usize,
) -> Result<(String, CallMarks)> {
    let mut room = share * RATIO;
    let marks = renderer.call_marks(row, ticks_max);
    for _ in 0..ATTEMPTS {
        let text = encoded(&renderer.panel(row, room))?;
        if text.len() <= share {
            return Ok((text, marks));
        }
        room = (room * share / text.len()).min(room / 2 + room / 4);
    }
    Ok((String::new(), marks))
}

/// Returns a value as JSON, without characters that hide or reorder text.
fn json_text(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value).map_err(|_| Error::Io(Errno::IO))?;
    if json.is_ascii() {
        return Ok(json);
    }
    let mut scanner = WritingScanner::default();
    Ok(json.chars().filter(|c| scanner.classify(*c) != Visibility::Hidden).collect())
}

/// Returns a value as JSON, compressed and in base64.
fn encoded(value: &impl Serialize) -> Result<String> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(json_text(value)?.as_bytes());
    let compressed = written.and_then(|()| encoder.finish());
    Ok(STANDARD.encode(compressed.map_err(|_| Error::Io(Errno::IO))?))
}

/// Returns the page with its data.
fn html(title: &str, overview: &str, marks: &str, panels: &[String]) -> Vec<u8> {
    let mut out = head(title, "").into_bytes();
    let script = script_element();
    let data = |id: &str| format!("<script type=\"application/octet-stream\" id=\"{id}\">");
    let start = [
        &data("overview"),
        overview,
        "</script>\n",
        &script,
        "\n",
        &data("marks"),
        marks,
        "</script>\n",
        &data("panels"),
    ];
    out.extend_from_slice(start.concat().as_bytes());
    for panel in panels {
        out.extend_from_slice(panel.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"</script>\n</body>\n</html>\n");
    out
}

fn script_element() -> String {
    format!("<script>{SCRIPT}</script>")
}

/// Returns a policy that permits the script and the style of the page, and `more`.
fn policy(more: &str) -> String {
    static HASHES: LazyLock<[String; 2]> =
        LazyLock::new(|| [SCRIPT, STYLE].map(|text| STANDARD.encode(Sha256::digest(text))));
    let [script, style] = &*HASHES;
    format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}';{more} \
         base-uri 'none'; form-action 'none'"
    )
}

/// Returns the beginning of a page. Its policy permits `more`, beside its script and its style.
fn head(title: &str, more: &str) -> String {
    let (title, policy) = (escaped(title), policy(more));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title} · swarmletfs</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <div id=\"page\"></div>\n\
         <noscript>This page needs JavaScript. <code>swarmletfs cat summary</code> prints the \
         same as text.</noscript>\n"
    )
}

/// Returns a text as the content of an element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
