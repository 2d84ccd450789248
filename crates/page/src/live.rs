//! The page while workers go on: its data as of a moment, and the changes between two moments.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rustix::io::Errno;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{PageData, WORKER_TICKS, head, json_text, now_ms};
use swarmletfs_base::digest::Key;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::Name;
use swarmletfs_tree::output::overview::OverviewJson;
use swarmletfs_tree::render::Renderer;
use swarmletfs_tree::route::{Document, Group, Report, Scope};

/// Size of a panel, in bytes.
const PANEL_MAX: usize = 1 << 20;

/// The data of a live page at a moment.
pub struct PageSnapshot {
    /// Identifies the state of the workers.
    key: Key,
    /// The ids of the workers, in the order of the overview.
    order: Vec<String>,
    rows: HashMap<String, Box<RawValue>>,
    /// Everything else in the overview.
    rest: Map<String, Value>,
}

impl PageSnapshot {
    /// Returns the data of the page, or `None` if it is the same as `before`, which costs little.
    ///
    /// # Errors
    ///
    /// The states of the workers cannot be read.
    pub fn take(
        renderer: &Renderer,
        (title, options): (&str, &str),
        before: Option<&PageSnapshot>,
    ) -> Result<Option<PageSnapshot>> {
        let key = renderer.state(&Document::Group(Group::Swarm, Report::Index))?.key;
        if before.is_some_and(|before| before.key == key) {
            return Ok(None);
        }
        let overview = renderer.overview(&Scope::Swarm)?.json;
        let order = overview.workers.iter().map(|worker| worker.row.id.clone()).collect();
        let rows = overview.workers.iter().map(|worker| {
            let row = RawValue::from_string(json_text(worker)?);
            Ok((worker.row.id.clone(), row.map_err(|_| Error::Io(Errno::IO))?))
        });
        let rows = rows.collect::<Result<_>>()?;
        let overview = OverviewJson { workers: Vec::new(), ..overview };
        let data = PageData::new(title, options, &overview);
        let mut rest: Map<String, Value> =
            serde_json::from_str(&json_text(&data)?).map_err(|_| Error::Io(Errno::IO))?;
        // These have fields of their own in a message.
        rest.retain(|name, _| !matches!(name.as_str(), "workers" | "now"));
        Ok(Some(PageSnapshot { key, order, rows, rest }))
    }

    /// Returns the message that brings a page from `before` here: the rows that changed, and the
    /// rest if it did. Without `before`, it has everything.
    ///
    /// # Errors
    ///
    /// The data cannot be written as JSON.
    pub fn message(&self, before: Option<&PageSnapshot>) -> Result<String> {
        let known = |id: &String| before.and_then(|before| before.rows.get(id));
        let rows = self.order.iter().filter_map(|id| Some((known(id), self.rows.get(id)?)));
        let rows = rows.filter(|(known, row)| known.is_none_or(|known| known.get() != row.get()));
        let rest = self.rest.iter().filter(|(name, value)| {
            before.and_then(|before| before.rest.get(*name)) != Some(value)
        });
        let is_ordered = before.is_some_and(|before| before.order == self.order);
        json_text(&PageMessage {
            now: now_ms(),
            rows: rows.map(|(_, row)| &**row).collect(),
            order: (!is_ordered).then_some(&self.order),
            rest: rest.map(|(name, value)| (name.as_str(), value)).collect(),
        })
    }
}

#[derive(Serialize)]
struct PageMessage<'a> {
    now: u128,
    rows: Vec<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<&'a [String]>,
    #[serde(flatten)]
    rest: BTreeMap<&'a str, &'a Value>,
}

/// Returns the panel about a worker as JSON.
///
/// # Errors
///
/// There is no such worker in the view, or it cannot be read.
pub fn panel(renderer: &Renderer, id: &str) -> Result<String> {
    let scope = Scope::Worker(Name::new(id)?);
    let overview = renderer.overview(&scope)?;
    let row = overview.rows.first().ok_or(Error::NotFound)?;
    json_text(&renderer.panel(row, PANEL_MAX))
}

/// Returns the calls of workers in short as JSON, by id; of all workers if `ids` is empty.
///
/// # Errors
///
/// One of the workers is not in the view, or the states of the workers cannot be read.
pub fn marks(renderer: &Renderer, ids: &[String]) -> Result<String> {
    let scope = if ids.is_empty() {
        Scope::Swarm
    } else {
        let names = ids.iter().map(Name::new).collect::<Result<Arc<[Name]>>>()?;
        Scope::Workers(names)
    };
    let overview = renderer.overview(&scope)?;
    let marks = overview.json.workers.iter().zip(&overview.rows).map(|(worker, row)| {
        (worker.row.id.as_str(), renderer.call_marks(row, *WORKER_TICKS.end()))
    });
    let marks: HashMap<&str, _> = marks.collect();
    json_text(&marks)
}

/// Returns the page without data, which asks its server for them.
pub fn shell() -> Vec<u8> {
    let mut out = head("swarmletfs", " connect-src 'self';").into_bytes();
    out.extend_from_slice(super::script_element().as_bytes());
    out.extend_from_slice(b"\n</body>\n</html>\n");
    out
}

/// Returns the policy of the live page, as a header.
pub fn policy() -> String {
    super::policy(" connect-src 'self'; frame-ancestors 'none';")
}
