//! Errors that are currently allowed: none in calm weather, a given list in a storm.

use std::io;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;

/// Errors with a name.
const NAMES: [(&str, Errno); 6] = [
    ("ECONNABORTED", Errno::CONNABORTED),
    ("EIO", Errno::IO),
    ("EMFILE", Errno::MFILE),
    ("ENOENT", Errno::NOENT),
    ("ENOTCONN", Errno::NOTCONN),
    ("ESTALE", Errno::STALE),
];

/// Returns the name of an error, or its message if it has no name.
pub(crate) fn name(error: &io::Error) -> String {
    let code = error.raw_os_error();
    match NAMES.iter().find(|(_, errno)| Some(errno.raw_os_error()) == code) {
        Some((name, _)) => (*name).into(),
        None => error.to_string(),
    }
}

/// All storms since the start.
#[derive(Default)]
pub(crate) struct Weather {
    storms: Mutex<Vec<Storm>>,
}

/// Period in which some errors are allowed.
struct Storm {
    allowed: Vec<String>,
    until: Option<Instant>,
}

impl Weather {
    /// Applies a line `storm ERRNO…` or `calm`. A new storm ends the last one.
    ///
    /// # Errors
    ///
    /// Fails if the line has another form or an unknown error name.
    pub(crate) fn apply(&self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let storm = match words.next() {
            Some("storm") => true,
            Some("calm") => false,
            _ => return Err(format!("a line must begin with `storm` or `calm`: {line}")),
        };
        let allowed: Vec<String> = words.map(str::to_owned).collect();
        if let Some(unknown) =
            allowed.iter().find(|word| NAMES.iter().all(|(name, _)| name != word))
        {
            return Err(format!("unknown error name: {unknown}"));
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

    /// Returns true if an operation that began at `since` may now end in this error.
    pub(crate) fn allows(&self, error: &str, since: Instant) -> bool {
        let storms = self.storms.lock();
        let overlaps = |storm: &&Storm| storm.until.is_none_or(|until| until >= since);
        storms
            .iter()
            .rev()
            .take_while(overlaps)
            .any(|storm| storm.allowed.iter().any(|name| name == error))
    }
}
