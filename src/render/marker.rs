//! Markers: what stands for a worker's evidence in a text, `[EVIDENCE:run_id=48,job_id=123,worker_id=abc-123]`.
//!
//! Run and job are `[A-Za-z0-9._:-]+`, and `-` where there is none. The worker's id decides where a marker leads; it may
//! hold anything but `]` and control characters. What else a name has is written `%XX`.

use std::borrow::Cow;
use std::sync::LazyLock;

use percent_encoding::percent_decode;
use regex::bytes::{Captures, Regex};

use crate::model::Worker;
use crate::name::Name;
use crate::view::{Member, View};

/// The longest that is read as a marker, in bytes.
pub(super) const MAX: usize = 2_048;
/// An id that is not there.
const NONE: &str = "-";

/// Letters in any case; the parts in this order.
static GRAMMAR: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let id = "([A-Za-z0-9._:-]{1,256})";
    Regex::new(&format!(r"(?i-u)\[EVIDENCE:run_id={id},job_id={id},worker_id=([^\]\x00-\x1f\x7f]{{1,1024}})\]")).ok()
});

/// The marker of a worker.
pub(super) fn format(member: &Member, worker: &Worker) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"._:-".contains(b);
    let id = |id: Option<&str>| match id {
        Some(id) if !id.is_empty() && id.bytes().all(|b| plain(&b)) => id.to_owned(),
        _ => NONE.into(),
    };
    // A worker's id decides where a marker leads, so what a marker cannot hold is written %XX rather than left out.
    let encode = |b: &u8| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02X}") };
    let worker_id: String = member.name.as_bytes().iter().map(encode).collect();
    format!(
        "[EVIDENCE:run_id={},job_id={},worker_id={worker_id}]",
        id(worker.run.as_deref()),
        id(worker.job.as_deref())
    )
}

/// A marker that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marker {
    run: String,
    job: String,
    /// The worker's id, as it is written.
    pub(super) worker: Vec<u8>,
}

impl Marker {
    /// The markers of `text`, each with where it ends, in their order.
    pub(super) fn all(text: &[u8]) -> impl Iterator<Item = (usize, Marker)> {
        let found = GRAMMAR.iter().flat_map(move |grammar| grammar.captures_iter(text));
        found.filter_map(|captures| Some((captures.get_match().end(), Marker::read(&captures)?)))
    }

    fn read(captures: &Captures<'_>) -> Option<Marker> {
        let part = |at| Some(captures.get(at)?.as_bytes().to_vec());
        let id = |at| String::from_utf8(part(at)?).ok();
        Some(Marker { run: id(1)?, job: id(2)?, worker: part(3)? })
    }

    /// What it is without the escapes of a JSON string; none if they are wrong.
    pub(super) fn unescaped(self) -> Option<Marker> {
        let quoted = [b"\"", self.worker.as_slice(), b"\""].concat();
        let worker: String = serde_json::from_slice(&quoted).ok()?;
        Some(Marker { worker: worker.into_bytes(), ..self })
    }

    /// The names that the worker may have: its id as it is written, and without `%XX`.
    pub(super) fn names(&self) -> impl Iterator<Item = Name> + '_ {
        let decoded: Cow<'_, [u8]> = percent_decode(&self.worker).into();
        let written = Name::new(&self.worker).ok();
        written.into_iter().chain(Name::new(decoded).ok())
    }

    /// Whether it is of that worker's run and job, as far as both say which.
    pub(super) fn agrees(&self, worker: &Worker) -> bool {
        let agrees = |said: &str, known: Option<&str>| said == NONE || known.is_none_or(|known| said == known);
        agrees(&self.run, worker.run.as_deref()) && agrees(&self.job, worker.job.as_deref())
    }

    /// Whether it says itself that it is of another run than `view`.
    pub(super) fn is_of_another_run(&self, view: &View) -> bool {
        self.run != NONE && view.run().is_some_and(|run| run != self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, Vec<u8>)> {
        Marker::all(text.as_bytes()).map(|(end, marker)| (end, marker.worker)).collect()
    }

    #[test]
    fn what_is_written_as_a_marker_is_read_as_one() {
        for (text, worker) in [
            ("[EVIDENCE:run_id=48,job_id=123,worker_id=abc-123]", "abc-123"),
            ("[evidence:RUN_ID=-,Job_Id=a.b:c_d,worker_id=x y,z=[ü]", "x y,z=[ü"),
        ] {
            assert_eq!(read(text), [(text.len(), worker.as_bytes().to_vec())], "{text}");
        }
        let two = "a [EVIDENCE:run_id=1,job_id=2,worker_id=a] b [EVIDENCE:run_id=1,job_id=2,worker_id=b]";
        assert_eq!(read(two).len(), 2);
    }

    #[test]
    fn what_is_malformed_is_no_marker() {
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
        assert_eq!(read(&format!("[EVIDENCE:run_id=1,job_id=1,worker_id={}]", "a".repeat(3_000))), []);
    }
}
