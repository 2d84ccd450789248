//! Compact encoding of the worker fields that are rarely read, to save memory with very many
//! workers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use swarmletfs_base::model::{SharedStr, TraceTime, WaitReason, Worker};

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PackedFields(Box<[u8]>);

#[derive(Serialize, Deserialize)]
struct Fields<'a> {
    job: Option<&'a str>,
    continues: Option<&'a str>,
    /// Nanoseconds since 1970, and the request.
    waiting: Option<(Option<i128>, &'a str)>,
    status_source: Option<&'a str>,
    task: &'a str,
    task_type: Option<&'a str>,
    #[serde(borrow)]
    tags: Vec<&'a str>,
    branch: Option<&'a str>,
    model: Option<&'a str>,
    cwd: Option<&'a str>,
    #[serde(borrow)]
    times: [PackedTime<'a>; 3],
    /// Nanoseconds since 1970.
    last_message: Option<i128>,
    duration_ms: Option<u64>,
    error: Option<&'a str>,
    summary: Option<&'a str>,
}

/// A time: nanoseconds since 1970, or the source text if it is not a valid time.
#[derive(Serialize, Deserialize)]
enum PackedTime<'a> {
    Absent,
    At(i128),
    Odd(&'a str),
}

impl PackedFields {
    pub(super) fn pack(worker: &Worker) -> PackedFields {
        let fields = Fields {
            job: worker.job.as_deref(),
            continues: worker.continues.as_deref(),
            waiting: worker.waiting.as_ref().map(|waiting| {
                (waiting.since.map(Timestamp::as_nanosecond), waiting.request.as_str())
            }),
            status_source: worker.status_source.as_deref(),
            task: &worker.task,
            task_type: worker.task_type.as_deref(),
            tags: worker.tags.iter().map(|tag| &**tag).collect(),
            branch: worker.branch.as_deref(),
            model: worker.model.as_deref(),
            cwd: worker.cwd.as_deref(),
            times: [&worker.created_at, &worker.started_at, &worker.finished_at]
                .map(PackedTime::from_time),
            last_message: worker.last_message.map(Timestamp::as_nanosecond),
            duration_ms: worker.duration_ms,
            error: worker.error.as_deref(),
            summary: worker.summary.as_deref(),
        };
        let packed = postcard::to_stdvec(&fields);
        debug_assert!(packed.is_ok(), "encoding strings and numbers cannot fail");
        PackedFields(packed.unwrap_or_default().into())
    }

    /// Copies the fields into `worker`. Returns `None` and leaves `worker` unchanged if the bytes
    /// are invalid.
    pub(super) fn unpack(&self, worker: &mut Worker) -> Option<()> {
        let fields: Fields<'_> = postcard::from_bytes(&self.0).ok()?;
        let [created_at, started_at, finished_at] = fields.times.map(PackedTime::into_time);
        let (created_at, started_at, finished_at) = (created_at?, started_at?, finished_at?);
        let (word, text) = (
            |text: Option<&str>| text.map(SharedStr::from),
            |text: Option<&str>| text.map(str::to_owned),
        );
        (worker.created_at, worker.started_at, worker.finished_at) =
            (created_at, started_at, finished_at);
        (worker.job, worker.status_source, worker.task_type) =
            (word(fields.job), word(fields.status_source), word(fields.task_type));
        (worker.branch, worker.model, worker.cwd) =
            (word(fields.branch), word(fields.model), word(fields.cwd));
        worker.continues = word(fields.continues);
        worker.waiting = fields.waiting.map(|(since, request)| WaitReason {
            since: since.and_then(|nanos| Timestamp::from_nanosecond(nanos).ok()),
            request: request.to_owned(),
        });
        worker.tags = fields.tags.into_iter().map(SharedStr::from).collect();
        worker.last_message =
            fields.last_message.and_then(|nanos| Timestamp::from_nanosecond(nanos).ok());
        worker.duration_ms = fields.duration_ms;
        worker.task = fields.task.to_owned();
        (worker.error, worker.summary) = (text(fields.error), text(fields.summary));
        Some(())
    }
}

/// Returns an encoding of the whole worker; only equal workers have equal encodings.
pub(super) fn encode(worker: &Worker) -> Vec<u8> {
    let words = (worker.owner.as_ref().map(|owner| &owner.0), &worker.run, &worker.parent);
    let encoded = postcard::to_stdvec(&(
        worker.id.0.as_bytes(),
        worker.root.as_bytes(),
        words,
        worker.status,
        &worker.flaws,
        worker.is_complete,
        PackedFields::pack(worker),
    ));
    debug_assert!(encoded.is_ok(), "encoding strings and numbers cannot fail");
    encoded.unwrap_or_default()
}

impl PackedTime<'_> {
    fn from_time(time: &TraceTime) -> PackedTime<'_> {
        match time {
            TraceTime::Absent => PackedTime::Absent,
            TraceTime::At(time) => PackedTime::At(time.as_nanosecond()),
            TraceTime::Unparsed(text) => PackedTime::Odd(text),
        }
    }

    /// Returns `None` if the time is out of range.
    fn into_time(self) -> Option<TraceTime> {
        match self {
            PackedTime::Absent => Some(TraceTime::Absent),
            PackedTime::At(nanos) => Timestamp::from_nanosecond(nanos).ok().map(TraceTime::At),
            PackedTime::Odd(text) => Some(TraceTime::Unparsed(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmletfs_base::name::{Name, RelPath};

    #[test]
    fn unpack_returns_every_packed_field() {
        let bare = || Worker::new(Name::new("w").unwrap(), RelPath::parse("workers/w").unwrap());
        let full = Worker {
            job: Some("7".into()),
            continues: Some("v".into()),
            waiting: Some(WaitReason { since: Some(Timestamp::MIN), request: "Which?".into() }),
            status_source: Some("success".into()),
            task: "look\nat é".into(),
            task_type: Some("check".into()),
            tags: vec!["night".into(), "".into()],
            branch: Some("fix/é".into()),
            model: Some("large".into()),
            cwd: Some("/srv".into()),
            created_at: TraceTime::At(Timestamp::MIN),
            started_at: TraceTime::At(Timestamp::MAX),
            finished_at: TraceTime::Unparsed("yesterday".into()),
            last_message: Some(Timestamp::MAX),
            duration_ms: Some(u64::MAX),
            error: Some("none".into()),
            summary: Some(String::new()),
            ..bare()
        };
        for worker in [bare(), full] {
            let mut unpacked = bare();
            PackedFields::pack(&worker).unpack(&mut unpacked).unwrap();
            assert_eq!(unpacked, worker);
        }
    }

    #[test]
    fn unpack_of_invalid_bytes_changes_nothing() {
        let worker =
            Worker { task: "a".into(), ..Worker::new(Name::new("w").unwrap(), RelPath::root()) };
        let packed = PackedFields::pack(&worker);
        let torn = packed.0.get(..packed.0.len() - 1).unwrap();
        for bytes in [&[][..], &[0xff; 9], torn] {
            let mut unpacked = worker.clone();
            assert_eq!(PackedFields(bytes.into()).unpack(&mut unpacked), None);
            assert_eq!(unpacked, worker);
        }
    }
}
