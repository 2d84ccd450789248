//! What a worker tells beyond what is asked of all workers at once: packed into a few bytes, since there are very many of
//! them and few are read.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{SharedStr, TraceTime, Worker};

/// That of one worker.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Packed(Box<[u8]>);

/// As it is packed.
#[derive(Serialize, Deserialize)]
struct Rest<'a> {
    job: Option<&'a str>,
    status_source: Option<&'a str>,
    task: &'a str,
    task_type: Option<&'a str>,
    #[serde(borrow)]
    tags: Vec<&'a str>,
    model: Option<&'a str>,
    cwd: Option<&'a str>,
    #[serde(borrow)]
    times: [Time<'a>; 3],
    duration_ms: Option<u64>,
    error: Option<&'a str>,
    summary: Option<&'a str>,
}

/// A time: one in nanoseconds since 1970, or the source's own words.
#[derive(Serialize, Deserialize)]
enum Time<'a> {
    Absent,
    At(i128),
    Odd(&'a str),
}

impl Packed {
    pub(super) fn of(worker: &Worker) -> Packed {
        let rest = Rest {
            job: worker.job.as_deref(),
            status_source: worker.status_source.as_deref(),
            task: &worker.task,
            task_type: worker.task_type.as_deref(),
            tags: worker.tags.iter().map(|tag| &**tag).collect(),
            model: worker.model.as_deref(),
            cwd: worker.cwd.as_deref(),
            times: [&worker.created_at, &worker.started_at, &worker.finished_at].map(Time::of),
            duration_ms: worker.duration_ms,
            error: worker.error.as_deref(),
            summary: worker.summary.as_deref(),
        };
        // Plain texts and numbers can always be written.
        Packed(postcard::to_stdvec(&rest).unwrap_or_default().into())
    }

    /// Has `worker` tell this, too. `None` where it is nothing that was packed here: then `worker` stays as it is.
    pub(super) fn unpack(&self, worker: &mut Worker) -> Option<()> {
        let rest: Rest<'_> = postcard::from_bytes(&self.0).ok()?;
        let [created_at, started_at, finished_at] = rest.times.map(Time::when);
        let (created_at, started_at, finished_at) = (created_at?, started_at?, finished_at?);
        let (word, text) =
            (|said: Option<&str>| said.map(SharedStr::from), |said: Option<&str>| said.map(str::to_owned));
        (worker.created_at, worker.started_at, worker.finished_at) = (created_at, started_at, finished_at);
        (worker.job, worker.status_source, worker.task_type) =
            (word(rest.job), word(rest.status_source), word(rest.task_type));
        (worker.model, worker.cwd) = (word(rest.model), word(rest.cwd));
        worker.tags = rest.tags.into_iter().map(SharedStr::from).collect();
        worker.duration_ms = rest.duration_ms;
        worker.task = rest.task.to_owned();
        (worker.error, worker.summary) = (text(rest.error), text(rest.summary));
        Some(())
    }
}

impl Time<'_> {
    fn of(when: &TraceTime) -> Time<'_> {
        match when {
            TraceTime::Absent => Time::Absent,
            TraceTime::At(time) => Time::At(time.as_nanosecond()),
            TraceTime::Unparsed(words) => Time::Odd(words),
        }
    }

    /// `None` where there is no such time.
    fn when(self) -> Option<TraceTime> {
        match self {
            Time::Absent => Some(TraceTime::Absent),
            Time::At(nanos) => Timestamp::from_nanosecond(nanos).ok().map(TraceTime::At),
            Time::Odd(words) => Some(TraceTime::Unparsed(words.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Name, RelPath};

    #[test]
    fn what_is_packed_is_told_again_whole() {
        let bare = || Worker::new(Name::new("w").unwrap(), RelPath::parse("workers/w").unwrap());
        let full = Worker {
            job: Some("7".into()),
            status_source: Some("success".into()),
            task: "look\nat é".into(),
            task_type: Some("check".into()),
            tags: vec!["night".into(), "".into()],
            model: Some("large".into()),
            cwd: Some("/srv".into()),
            created_at: TraceTime::At(Timestamp::MIN),
            started_at: TraceTime::At(Timestamp::MAX),
            finished_at: TraceTime::Unparsed("yesterday".into()),
            duration_ms: Some(u64::MAX),
            error: Some("none".into()),
            summary: Some(String::new()),
            ..bare()
        };
        for worker in [bare(), full] {
            let mut told = bare();
            Packed::of(&worker).unpack(&mut told).unwrap();
            assert_eq!(told, worker);
        }
    }

    #[test]
    fn what_was_not_packed_here_changes_nothing() {
        let worker = Worker { task: "a".into(), ..Worker::new(Name::new("w").unwrap(), RelPath::root()) };
        let packed = Packed::of(&worker);
        let torn = packed.0.get(..packed.0.len() - 1).unwrap();
        for bytes in [&[][..], &[0xff; 9], torn] {
            let mut told = worker.clone();
            assert_eq!(Packed(bytes.into()).unpack(&mut told), None);
            assert_eq!(told, worker);
        }
    }
}
