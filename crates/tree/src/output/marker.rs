//! Markers such as `[EVIDENCE:run_id=48,job_id=123,worker_id=abc-123]`, which refer to a worker's
//! evidence from any text.
//!
//! Run and job match `[A-Za-z0-9._:-]+`, and are `-` if unknown. The worker's id alone selects the
//! worker. It may hold anything but `]` and control characters. A marker that this module writes
//! has `%XX` for every byte that run and job cannot hold.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use regex::bytes::{Captures, Regex};

use crate::view::{Member, View};
use swarmletfs_base::model::Worker;
use swarmletfs_base::name::Name;

/// Maximum length of a marker in bytes.
pub const MAX: usize = 2_048;
const NONE: &str = "-";

/// The syntax of a marker: letters in any case, the parts in this order.
static GRAMMAR: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let id = "([A-Za-z0-9._:-]{1,256})";
    Regex::new(&format!(
        r"(?i-u)\[EVIDENCE:run_id={id},job_id={id},worker_id=([^\]\x00-\x1f\x7f]{{1,1024}})\]"
    ))
    .ok()
});

/// The bytes of an id that a marker of this module does not encode, besides letters and digits.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b':').remove(b'-');

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    run: String,
    job: String,
    /// The worker's id as written in the marker.
    pub worker: Vec<u8>,
}

impl Marker {
    pub(super) fn new(member: &Member, worker: &Worker) -> Marker {
        // The worker's id selects the worker, so other bytes are encoded rather than left out.
        let name = percent_encode(member.name.as_bytes(), PLAIN).to_string();
        Marker {
            run: plain_or_none(worker.run.as_deref()),
            job: plain_or_none(worker.job.as_deref()),
            worker: name.into(),
        }
    }

    /// Returns the marker of the worker `name` with no run and job.
    pub fn from_name(name: &Name) -> Marker {
        let worker = percent_encode(name.as_bytes(), NON_ALPHANUMERIC).to_string();
        Marker { run: NONE.into(), job: NONE.into(), worker: worker.into() }
    }

    /// Finds all markers in `text`, in order. Each comes with the offset of its end.
    pub fn all(text: &[u8]) -> impl Iterator<Item = (usize, Marker)> {
        let found = GRAMMAR.iter().flat_map(move |grammar| grammar.captures_iter(text));
        found.filter_map(|captures| {
            Some((captures.get_match().end(), Marker::from_captures(&captures)?))
        })
    }

    fn from_captures(captures: &Captures<'_>) -> Option<Marker> {
        let part = |at| Some(captures.get(at)?.as_bytes().to_vec());
        let id = |at| String::from_utf8(part(at)?).ok();
        Some(Marker { run: id(1)?, job: id(2)?, worker: part(3)? })
    }

    pub fn worker_in(text: &str) -> Option<String> {
        let (end, marker) = Marker::all(text.as_bytes()).next()?;
        let is_marker = text.starts_with('[') && end == text.len();
        is_marker.then(|| percent_decode(&marker.worker).decode_utf8_lossy().into_owned())
    }

    /// Decodes the escapes of a JSON string. Returns `None` if they are invalid.
    pub fn unescaped(self) -> Option<Marker> {
        let quoted = [b"\"", self.worker.as_slice(), b"\""].concat();
        let worker: String = serde_json::from_slice(&quoted).ok()?;
        Some(Marker { worker: worker.into_bytes(), ..self })
    }

    /// Returns the names that the worker may have: its id as written, and with `%XX` decoded.
    pub fn names(&self) -> impl Iterator<Item = Name> + '_ {
        let decoded: Cow<'_, [u8]> = percent_decode(&self.worker).into();
        let written = Name::new(&self.worker).ok();
        written.into_iter().chain(Name::new(decoded).ok())
    }

    /// Returns true unless the marker names another run or job than the worker's.
    pub fn agrees(&self, worker: &Worker) -> bool {
        let agrees =
            |id: &str, known: Option<&str>| id == NONE || known.is_none_or(|known| id == known);
        agrees(&self.run, worker.run.as_deref()) && agrees(&self.job, worker.job.as_deref())
    }

    /// Returns true if the marker names a run other than the run of `view`.
    pub fn is_of_another_run(&self, view: &View) -> bool {
        self.run != NONE && view.run().is_some_and(|run| run != self.run)
    }
}

/// Returns the id of a run or job if a marker can hold it, else [`NONE`].
fn plain_or_none(id: Option<&str>) -> String {
    let plain = id.filter(|id| {
        !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
    });
    plain.unwrap_or(NONE).to_owned()
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Marker { run, job, worker } = self;
        let worker = String::from_utf8_lossy(worker);
        write!(f, "[EVIDENCE:run_id={run},job_id={job},worker_id={worker}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, Vec<u8>)> {
        Marker::all(text.as_bytes()).map(|(end, marker)| (end, marker.worker)).collect()
    }

    #[test]
    fn valid_markers_are_found() {
        for (text, worker) in [
            ("[EVIDENCE:run_id=48,job_id=123,worker_id=abc-123]", "abc-123"),
            ("[evidence:RUN_ID=-,Job_Id=a.b:c_d,worker_id=x y,z=[ü]", "x y,z=[ü"),
        ] {
            assert_eq!(read(text), [(text.len(), worker.as_bytes().to_vec())], "{text}");
        }
        let two =
            "a [EVIDENCE:run_id=1,job_id=2,worker_id=a] b [EVIDENCE:run_id=1,job_id=2,worker_id=b]";
        assert_eq!(read(two).len(), 2);
    }

    #[test]
    fn malformed_markers_are_ignored() {
        for text in [
            "[EVIDENCE:invalid]",
            "[EVIDENCE:run_id=48,job_id=123]",
            "[EVIDENCE:job_id=123,run_id=48,worker_id=a]",
            "[EVIDENCE:run_id=,job_id=1,worker_id=a]",
            "[EVIDENCE:run_id=4 8,job_id=1,worker_id=a]",
            "[EVIDENCE:run_id=48,job_id=1,worker_id=]",
            "[EVIDENCE:run_id=48,job_id=1,worker_id=a\nb]",
            "[\\EVIDENCE:run_id=48,job_id=1,worker_id=a]",
            "EVIDENCE:run_id=48,job_id=1,worker_id=a",
            "[EVIDENCE:run_id=48,job_id=1,worker_id=a",
        ] {
            assert_eq!(read(text), [], "{text}");
        }
        assert_eq!(
            read(&format!("[EVIDENCE:run_id=1,job_id=1,worker_id={}]", "a".repeat(3_000))),
            []
        );
    }
}
