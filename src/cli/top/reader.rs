//! Reads the workers and their files in threads of its own.
//!
//! The list is read as `wait` polls: about once a second, or less often so that polling takes a
//! small part of the time. A long first reading returns the workers read so far once a second.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;

use super::lines::TopWorker;
use super::pane::{Detail, DetailRequest, WorkerPart};
use crate::analysis::settings::{Control, Settings};
use crate::catalog::Freshness;
use crate::cli::in_process::read_file;
use crate::cli::store_selection::StoreSelection;
use crate::cli::tree_commands::sentence;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::name::Name;
use crate::query::compare::{CompareOptions, CompareQuery};
use crate::query::search::{SearchOptions, SearchQuery};
use crate::query::since::state_hash;
use crate::render::Renderer;
use crate::render::list::WorkerQuery;
use crate::tree::{Symlinks, Tree};

/// Time after which a text is read that was asked for before there was a tree.
const RETRY: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Ratio of the rest to the cost of a poll, and to the cost of a list.
const POLL_REST: u32 = 20;
const LIST_REST: u32 = 4;
/// Ratio of the rest to the cost of a poll that includes the files of finished workers.
const THOROUGH_REST: u32 = 40;
/// Maximum size of a text, in bytes.
const TEXT_MAX: usize = 4 << 20;

/// News for the view.
pub(super) enum TopNews {
    /// The workers, and a notice on those not read; empty if all was.
    Workers(Vec<TopWorker>, String),
    Detail(DetailRequest, Result<Detail, String>),
    /// The stores cannot be read.
    Failed(anyhow::Error),
}

/// The threads that read. They end with the process.
pub(super) struct TopReader {
    pub(super) news: Receiver<TopNews>,
    pub(super) selection: Arc<StoreSelection>,
    files: Sender<DetailRequest>,
    queries: Sender<DetailRequest>,
    refreshes: Sender<Name>,
    control: Arc<Control>,
}

impl TopReader {
    /// Starts to read the workers that `query` admits.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub(super) fn start(
        selection: StoreSelection,
        query: WorkerQuery,
    ) -> anyhow::Result<TopReader> {
        let selection = Arc::new(selection);
        let control = Arc::new(Control::until(None));
        let (sender, news) = mpsc::channel();
        let (refreshes, refreshed) = mpsc::channel();
        let tree = Arc::new(Mutex::new(None));
        let lister = WorkerLister {
            selection: selection.clone(),
            query,
            control: control.clone(),
            tree: tree.clone(),
            news: sender.clone(),
        };
        start_thread("list", move || {
            // Ends with an error if the view has ended.
            if let Err(error) = lister.run(&refreshed) {
                let _ = lister.news.send(TopNews::Failed(error));
            }
        })?;
        // A long search delays no file.
        let [files, queries] = [(); 2].map(|()| serve_texts(tree.clone(), sender.clone()));
        Ok(TopReader { news, selection, files: files?, queries: queries?, refreshes, control })
    }

    pub(super) fn request(&self, request: DetailRequest) {
        let thread = match request {
            DetailRequest::Worker(..) => &self.files,
            DetailRequest::Compare(..) | DetailRequest::Search(_) => &self.queries,
        };
        let _ = thread.send(request);
    }

    /// Reads a worker that this process has changed again.
    pub(super) fn refresh(&self, worker: Name) {
        let _ = self.refreshes.send(worker);
    }

    /// Says how far the first reading is.
    pub(super) fn progress(&self) -> String {
        match self.control.progress() {
            (_, 0) => "reading…".to_owned(),
            (done, all) => format!("reading… {done} of {all}"),
        }
    }
}

/// Starts a thread that reads texts, one at a time, the latest request first.
///
/// # Errors
///
/// No thread can be started.
fn serve_texts(
    tree: Arc<Mutex<Option<Arc<Tree>>>>,
    news: Sender<TopNews>,
) -> anyhow::Result<Sender<DetailRequest>> {
    let (requests, requested) = mpsc::channel();
    start_thread("text", move || {
        let mut early: Option<DetailRequest> = None;
        loop {
            let next = match early.take() {
                None => requested.recv().map_err(drop),
                Some(request) => match requested.recv_timeout(RETRY) {
                    Err(RecvTimeoutError::Timeout) => Ok(request),
                    next => next.map_err(drop),
                },
            };
            let Ok(request) = next else { break };
            // A later request replaces those before it.
            let request = requested.try_iter().last().unwrap_or(request);
            let current: Option<Arc<Tree>> = tree.lock().clone();
            let Some(current) = current else {
                early = Some(request);
                continue;
            };
            let read = read_detail(&current, &request);
            if news.send(TopNews::Detail(request, read)).is_err() {
                break;
            }
        }
    })?;
    Ok(requests)
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).context("cannot start a thread")
}

struct WorkerLister {
    selection: Arc<StoreSelection>,
    query: WorkerQuery,
    control: Arc<Control>,
    /// The tree for the thread that reads texts.
    tree: Arc<Mutex<Option<Arc<Tree>>>>,
    news: Sender<TopNews>,
}

impl WorkerLister {
    /// Returns a renderer of the stores as they are now.
    fn open(&self) -> anyhow::Result<Renderer> {
        let freshness = Freshness { unfinished: POLL_INTERVAL, ..Freshness::default() };
        let view = self.selection.open(freshness)?;
        let tree = Tree::new(view, Settings::without_deadline(self.control.clone()));
        let renderer = tree.renderer().with_deadline(POLL_INTERVAL);
        *self.tree.lock() = Some(Arc::new(tree));
        Ok(renderer)
    }

    /// Sends the workers whenever they changed, until the view ends.
    ///
    /// # Errors
    ///
    /// A store cannot be read.
    fn run(&self, refreshes: &Receiver<Name>) -> anyhow::Result<()> {
        let mut renderer = self.open()?;
        let (mut last, mut next_thorough) = (None, Instant::now());
        loop {
            if renderer.view().is_replaced()
                // The replacement may not be a valid store yet; the old one then stays in use.
                && let Ok(another) = self.open()
            {
                (renderer, last) = (another, None);
            }
            let start = Instant::now();
            let is_thorough = start >= next_thorough;
            if !renderer.view().visible().unread.is_empty() {
                renderer.view().read_sessions(
                    Deadline::new(&|| start.elapsed() < POLL_INTERVAL),
                    &|_| {},
                    &|| {},
                );
            }
            let state = Some(state_hash(renderer.view(), is_thorough));
            let polled = Instant::now();
            let mut rest = POLL_INTERVAL.max((polled - start) * POLL_REST);
            if is_thorough {
                next_thorough = polled + (polled - start) * THOROUGH_REST;
                rest = POLL_INTERVAL;
            }
            if state != last {
                let (rows, missing) =
                    renderer.board(&self.query).context("cannot read the store")?;
                let lines = rows.iter().map(TopWorker::new).collect();
                let notice = missing.as_ref().map(ToString::to_string).unwrap_or_default();
                if self.news.send(TopNews::Workers(lines, notice)).is_err() {
                    return Ok(());
                }
                last = state.filter(|_| missing.is_none());
                rest = rest.max(polled.elapsed() * LIST_REST);
                if missing.is_some() {
                    rest = Duration::ZERO;
                }
            }
            match refreshes.recv_timeout(rest) {
                Ok(worker) => {
                    if let Some(tree) = self.tree.lock().as_deref() {
                        tree.refresh(&worker);
                    }
                    last = None;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// Reads a text as the commands `show`, `log`, `diff`, `compare` and `search` print it.
fn read_detail(tree: &Tree, request: &DetailRequest) -> Result<Detail, String> {
    let read = match request {
        DetailRequest::Worker(name, WorkerPart::Calls) => {
            tree.renderer().worker_log(name).map(|text| (text.into_bytes(), Vec::new()))
        }
        DetailRequest::Worker(name, part) => {
            let path = [b"workers/", name.as_bytes(), b"/", part.path().as_bytes()].concat();
            let opened =
                tree.with_path(&path, Symlinks::Follow, |place| Ok(place.leaf().open()?.fh));
            let size = Some(TEXT_MAX as u64);
            opened.and_then(|fh| read_file(tree, fh, 0, size)).map(|bytes| (bytes, Vec::new()))
        }
        DetailRequest::Compare(a, b) => {
            let names = [a, b].map(Name::as_bytes);
            let query = CompareQuery::new(CompareOptions::default(), names);
            tree.compare(&query).map(|answer| (answer.page.text.into_bytes(), Vec::new()))
        }
        DetailRequest::Search(words) => {
            let options = SearchOptions::default();
            let query = SearchQuery { options, words: words.clone(), under: None };
            tree.search(tree.root(), &query).map(|answer| {
                let Some(answer) = answer else { return Default::default() };
                let mut found: Vec<Name> = Vec::new();
                for file in answer.found.shown {
                    if !found.contains(&file.worker) {
                        found.push(file.worker);
                    }
                }
                (answer.page.text.into_bytes(), found)
            })
        }
    };
    match read {
        Ok((mut bytes, found)) => {
            if bytes.len() >= TEXT_MAX {
                bytes.truncate(TEXT_MAX);
                bytes.extend_from_slice(b"\n[the rest is left out; a command prints all]\n");
            }
            Ok(Detail { bytes, found })
        }
        Err(error) if is_without_changes(request, &error) => {
            Err("no changes: its record holds none; 3 shows its calls".to_owned())
        }
        Err(error) => Err(format!("cannot read this: {}; Esc goes back", sentence(&error))),
    }
}

fn is_without_changes(request: &DetailRequest, error: &Error) -> bool {
    matches!(request, DetailRequest::Worker(_, WorkerPart::Diff)) && error.is_not_found()
}
