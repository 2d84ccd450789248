//! The errors that are allowed at the moment: none in calm weather, a given list in a storm.

use std::io;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;

/// The errors that are known by name.
const NAMES: [(&str, Errno); 6] = [
    ("ECONNABORTED", Errno::CONNABORTED),
    ("EIO", Errno::IO),
    ("EMFILE", Errno::MFILE),
    ("ENOENT", Errno::NOENT),
    ("ENOTCONN", Errno::NOTCONN),
    ("ESTALE", Errno::STALE),
];

/// The name of an error, or what there is instead.
pub(crate) fn name(error: &io::Error) -> String {
    let code = error.raw_os_error();
    match NAMES.iter().find(|(_, errno)| Some(errno.raw_os_error()) == code) {
        Some((name, _)) => (*name).into(),
        None => error.to_string(),
    }
}

/// The weather so far.
#[derive(Default)]
pub(crate) struct Weather {
    storms: Mutex<Vec<Storm>>,
}

struct Storm {
    allowed: Vec<String>,
    until: Option<Instant>,
}

impl Weather {
    /// Takes note of `storm ERRNO…` or `calm`. A storm ends the one before it.
    pub(crate) fn turn(&self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let storm = match words.next() {
            Some("storm") => true,
            Some("calm") => false,
            _ => return Err(format!("neither storm nor calm: {line}")),
        };
        let allowed: Vec<String> = words.map(str::to_owned).collect();
        if let Some(unknown) = allowed.iter().find(|word| NAMES.iter().all(|(name, _)| name != word)) {
            return Err(format!("no known error: {unknown}"));
        }
        let now = Instant::now();
        let mut storms = self.storms.lock();
        if let Some(last) = storms.last_mut() {
            last.until.get_or_insert(now);
        }
        if storm {
            storms.push(Storm { allowed, until: None });
        }
        Ok(())
    }

    /// Whether an operation that began `since` may end in this error by now.
    pub(crate) fn allows(&self, error: &str, since: Instant) -> bool {
        let storms = self.storms.lock();
        let met = |storm: &&Storm| storm.until.is_none_or(|until| until >= since);
        storms.iter().rev().take_while(met).any(|storm| storm.allowed.iter().any(|name| name == error))
    }
}
