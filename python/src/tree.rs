//! The tree of a view: paths, queries, and waiting.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use swarmletfs::cli::in_process::{
    Stores, WaitEnd, WaitRequest, compare_json, grep_json, not_searchable, read_file, search_json,
};
use swarmletfs_base::name::Name;
use swarmletfs_tree::analysis::facets::Facet;
use swarmletfs_tree::query::call_output::CallSelector;
use swarmletfs_tree::query::compare::{CompareOptions, CompareQuery};
use swarmletfs_tree::query::grep::{GrepOptions, GrepQuery};
use swarmletfs_tree::query::search::{SearchMode, SearchOptions, SearchQuery};
use swarmletfs_tree::query::wait::WaitCondition;
use swarmletfs_tree::query::{AnswerPage, FileAnswer, FileQuery};
use swarmletfs_tree::render::expand::InputFormat;
use swarmletfs_tree::render::list::WorkerQuery;
use swarmletfs_tree::route::cursor::Cursor;
use swarmletfs_tree::tree::Symlinks;

use crate::failure::{Failure, detached, parse_budget};

/// Interval between checks whether a store was replaced by another directory.
const REPLACED_INTERVAL: Duration = Duration::from_secs(1);
/// Longest sleep before signals are handled.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The tree of a view, opened again if another directory replaces a store.
#[pyclass(frozen, module = "swarmletfs._native")]
pub(crate) struct Tree {
    stores: Stores,
    limit: Option<Duration>,
    current: Mutex<OpenTree>,
}

/// A tree that is open in one process.
struct OpenTree {
    tree: Arc<swarmletfs_tree::tree::Tree>,
    /// Time of the last check for a replaced store.
    checked: Instant,
    process: u32,
}

/// A text, and the object that the command prints with `--json`.
type TextAndJson = (String, String);

#[pymethods]
impl Tree {
    #[new]
    #[pyo3(signature = (stores, owner, run, max_time))]
    fn new(
        py: Python<'_>,
        stores: Vec<PathBuf>,
        owner: Option<String>,
        run: Option<String>,
        max_time: Option<f64>,
    ) -> PyResult<Tree> {
        let limit = max_time.map(|time| to_duration(time, "max_time")).transpose()?;
        detached(py, || {
            let stores = Stores::find(stores, owner.as_deref(), run.as_deref())?;
            let tree = Arc::new(stores.open(limit)?);
            let open = OpenTree { tree, checked: Instant::now(), process: std::process::id() };
            Ok(Tree { stores, limit, current: Mutex::new(open) })
        })
    }

    /// Returns the paths of the stores.
    fn stores(&self) -> Vec<PathBuf> {
        self.stores.paths().to_vec()
    }

    /// Returns up to `size` bytes of a file from `offset` on.
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        offset: u64,
        size: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = detached(py, || {
            let tree = self.get()?;
            let opened = tree.with_path(&path, Symlinks::Follow, |place| place.leaf().open());
            let opened = opened.map_err(|error| Failure::at_path(&path, &error))?;
            read_file(&tree, opened.fh, offset, size)
                .map_err(|error| Failure::at_path(&path, &error))
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Returns the names and kinds of the entries of a folder.
    fn list(&self, py: Python<'_>, path: Vec<u8>) -> PyResult<Vec<(Vec<u8>, &'static str)>> {
        detached(py, || {
            let tree = self.get()?;
            let listed =
                tree.with_path(&path, Symlinks::Follow, |place| place.leaf().list_folder());
            let listed = listed.map_err(|error| Failure::at_path(&path, &error))?;
            let entry = |entry: &swarmletfs_tree::tree::ListedEntry| {
                (entry.name.as_bytes().to_vec(), entry.kind.as_str())
            };
            Ok(listed.iter().map(entry).collect())
        })
    }

    /// Returns a path with ids in full and links resolved.
    fn resolve<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let resolved = detached(py, || {
            let tree = self.get()?;
            let resolved = tree.with_path(&path, Symlinks::Follow, |place| Ok(place.path()));
            resolved.map_err(|error| Failure::at_path(&path, &error))
        })?;
        Ok(PyBytes::new(py, &resolved))
    }

    /// Returns the rows of index.json of the workers that match, as a JSON array.
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument in Python")]
    fn workers(
        &self,
        py: Python<'_>,
        folder: Vec<u8>,
        status: Option<String>,
        outcome: Option<String>,
        attention: Option<String>,
        task_type: Option<String>,
        tag: Option<String>,
        limit: Option<usize>,
    ) -> PyResult<String> {
        let values = [
            (Facet::Status, status),
            (Facet::Outcome, outcome),
            (Facet::Attention, attention),
            (Facet::Type, task_type),
            (Facet::Tag, tag),
        ];
        let values = values.into_iter().filter_map(|(facet, value)| Some((facet, value?)));
        let query = WorkerQuery { values: values.collect(), ..WorkerQuery::default() };
        detached(py, || {
            let tree = self.get()?;
            let listed = tree.with_path(&folder, Symlinks::Follow, |place| {
                tree.list_workers(place.leaf().ino, &query)
            });
            let listed = listed.map_err(|error| Failure::at_path(&folder, &error))?;
            let mut rows = listed.unwrap_or_default().workers;
            rows.truncate(limit.unwrap_or(usize::MAX));
            to_json(serde_json::to_string(&rows))
        })
    }

    /// Searches the files under `path`, or those of `workers`, for a regex.
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument in Python")]
    fn grep(
        &self,
        py: Python<'_>,
        path: Vec<u8>,
        workers: Option<Vec<String>>,
        regex: String,
        ignore_case: bool,
        context: usize,
        glob: Option<String>,
        budget: Option<String>,
    ) -> PyResult<TextAndJson> {
        detached(py, || {
            let budget = budget.as_deref().map(parse_budget).transpose()?;
            let options =
                GrepOptions { ignore_case, context, budget, glob, ..GrepOptions::default() };
            let query = GrepQuery { options, regex, under: None };
            self.query(&path, workers.as_deref(), &query, |answer| grep_json(&query, answer))
        })
    }

    /// Searches the files under `path`, or those of `workers`, for words.
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument in Python")]
    fn search(
        &self,
        py: Python<'_>,
        path: Vec<u8>,
        workers: Option<Vec<String>>,
        words: String,
        mode: &str,
        glob: Option<String>,
        budget: Option<String>,
    ) -> PyResult<TextAndJson> {
        let mode = SearchMode::from_name(mode).ok_or_else(|| {
            let modes = SearchMode::ALL.map(SearchMode::as_str).join(", ");
            Failure::invalid(format!("cannot search by {mode:?}; try one of {modes}"))
        })?;
        detached(py, || {
            let budget = budget.as_deref().map(parse_budget).transpose()?;
            let options = SearchOptions { budget, glob, mode };
            let query = SearchQuery { options, words, under: None };
            self.query(&path, workers.as_deref(), &query, |answer| search_json(&query, answer))
        })
    }

    /// Compares workers.
    fn compare(
        &self,
        py: Python<'_>,
        workers: Vec<String>,
        aspect: Option<String>,
        budget: Option<String>,
    ) -> PyResult<TextAndJson> {
        detached(py, || {
            let budget = budget.as_deref().map(parse_budget).transpose()?;
            let options = CompareOptions { budget, aspect };
            let query = CompareQuery::new(options, workers.iter().map(String::as_bytes));
            let compared = self.get()?.compare(&query);
            let answer = compared
                .map_err(|error| Failure::at_path(workers.join(", ").as_bytes(), &error))?;
            check_query(&answer.page)?;
            let json = to_json(compare_json(&query, &answer))?;
            Ok((answer.page.text, json))
        })
    }

    /// Inserts evidence after the markers of a text. Also returns what was not expanded.
    fn expand<'py>(
        &self,
        py: Python<'py>,
        format: &str,
        text: Vec<u8>,
        budget: Option<String>,
    ) -> PyResult<(Bound<'py, PyBytes>, Option<String>)> {
        let format = match format {
            "text" => InputFormat::Text,
            "openai" => InputFormat::OpenAi,
            "anthropic" => InputFormat::Anthropic,
            "langchain" => InputFormat::LangChain,
            other => {
                let message =
                    format!("unknown format {other:?}; try text, openai, anthropic or langchain");
                return Err(Failure::invalid(message).into());
            }
        };
        let (expanded, left) = detached(py, || {
            let budget = budget.as_deref().map(parse_budget).transpose()?;
            let mut expanded = Vec::new();
            let done = self.get()?.renderer().expand(format, budget, &*text, &mut expanded);
            let stats = done.map_err(|error| Failure::from(anyhow::Error::from(error)))?;
            Ok((expanded, stats.not_expanded()))
        })?;
        Ok((PyBytes::new(py, &expanded), left))
    }

    /// Returns the output of the call of a worker with this number or file, or with this artifact
    /// id.
    fn output<'py>(
        &self,
        py: Python<'py>,
        worker: Option<String>,
        number: Option<u64>,
        id: Option<String>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = detached(py, || {
            let shown = worker.as_deref().or(id.as_deref()).unwrap_or_default().as_bytes();
            let fail = |error| Failure::at_path(shown, &error);
            let name = worker.as_deref().map(|id| Name::new(id.as_bytes())).transpose();
            let name = name.map_err(fail)?;
            let call = match (&name, number, &id) {
                (Some(name), Some(number), _) => CallSelector::Number(name, number),
                (Some(name), None, Some(file)) => CallSelector::File(name, file),
                (None, None, Some(id)) => CallSelector::Artifact(id),
                _ => return Err(Failure::invalid("name a call by its number or file")),
            };
            let tree = self.get()?;
            let (place, fh) = tree.open_output(&call).map_err(fail)?;
            let path = format!("workers/{}/{}", place.worker.display(), place.path.display());
            match fh {
                Some(fh) => read_file(&tree, fh, 0, None)
                    .map_err(|error| Failure::at_path(path.as_bytes(), &error)),
                None => {
                    let why = place.missing.unwrap_or_default();
                    Err(Failure::from(anyhow::anyhow!("{path}: {why}")))
                }
            }
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Waits for an event. Returns true if it occurred, and the report.
    fn wait(
        &self,
        py: Python<'_>,
        until: &str,
        since: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<(bool, String)> {
        let until = match until {
            "finished" => WaitCondition::Finished,
            "failed" => WaitCondition::Failed,
            "waiting" => WaitCondition::Waiting,
            "attention" => WaitCondition::Attention,
            "any" => WaitCondition::Any,
            other => {
                let message = format!(
                    "cannot wait until {other:?}; try finished, failed, waiting, attention or any"
                );
                return Err(Failure::invalid(message).into());
            }
        };
        let since = since.as_deref().map(Cursor::parse).transpose().map_err(Failure::invalid)?;
        let timeout = timeout.map(|time| to_duration(time, "timeout")).transpose()?;
        detached(py, || {
            let raised = RefCell::new(None);
            let sleep = |rest: Duration| match sleep_with_signals(rest) {
                Ok(()) => true,
                Err(error) => {
                    raised.replace(Some(error));
                    false
                }
            };
            let end = self.stores.wait(WaitRequest { until, since, timeout }, sleep);
            if let Some(error) = raised.take() {
                return Err(Failure::Python(error));
            }
            Ok(match end? {
                WaitEnd::Occurred(report) => (true, String::from_utf8_lossy(&report).into_owned()),
                WaitEnd::TimedOut(report) => (false, report),
                WaitEnd::Stopped => (false, String::new()),
            })
        })
    }
}

impl Tree {
    /// Returns the current tree.
    fn get(&self) -> Result<Arc<swarmletfs_tree::tree::Tree>, Failure> {
        let mut open = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if open.process != process {
            // After a fork, the threads of the old tree and what they locked are gone.
            let tree = Arc::new(self.stores.open(self.limit)?);
            std::mem::forget(std::mem::replace(&mut open.tree, tree));
            open.process = process;
        } else if open.checked.elapsed() >= REPLACED_INTERVAL {
            open.checked = Instant::now();
            // The replacement may not be a valid store yet; the old one then stays in use.
            if open.tree.view().is_replaced()
                && let Ok(tree) = self.stores.open(self.limit)
            {
                open.tree = Arc::new(tree);
            }
        }
        Ok(open.tree.clone())
    }

    /// Answers a query about the files under `path`, or about those of `workers`.
    fn query<Q: FileQuery>(
        &self,
        path: &[u8],
        workers: Option<&[String]>,
        query: &Q,
        json: impl FnOnce(&FileAnswer<Q::Found>) -> serde_json::Result<String>,
    ) -> Result<TextAndJson, Failure> {
        let tree = self.get()?;
        let answer = match workers {
            Some(workers) => {
                let fail = |error| Failure::at_path(workers.join(", ").as_bytes(), &error);
                let names = workers.iter().map(|id| Name::new(id.as_bytes()));
                let names = names.collect::<Result<Arc<[Name]>, _>>().map_err(fail)?;
                tree.search_workers(names, query).map_err(fail)?
            }
            None => {
                let answered = tree
                    .with_path(path, Symlinks::Follow, |place| tree.search(place.leaf().ino, query))
                    .map_err(|error| Failure::at_path(path, &error))?;
                answered.ok_or_else(|| Failure::invalid(not_searchable(path)))?
            }
        };
        check_query(&answer.page)?;
        let json = to_json(json(&answer))?;
        Ok((answer.page.text, json))
    }
}

/// Fails if an answer refuses its query.
fn check_query(page: &AnswerPage) -> Result<(), Failure> {
    match page.error {
        Some(_) => Err(Failure::invalid(page.text.trim_end())),
        None => Ok(()),
    }
}

fn to_json(json: serde_json::Result<String>) -> Result<String, Failure> {
    json.map_err(|error| Failure::from(anyhow::Error::from(error)))
}

fn to_duration(seconds: f64, name: &str) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| Failure::invalid(format!("cannot use {seconds} as {name}: {error}")))
}

/// Sleeps. Handles signals meanwhile, as by Ctrl-C.
///
/// # Errors
///
/// The handler of a signal raised an exception.
fn sleep_with_signals(mut rest: Duration) -> PyResult<()> {
    while !rest.is_zero() {
        let part = rest.min(SIGNAL_INTERVAL);
        thread::sleep(part);
        rest -= part;
        Python::attach(|py| py.check_signals())?;
    }
    Ok(())
}
