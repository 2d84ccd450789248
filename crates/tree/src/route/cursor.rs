//! Cursors: the position of a reader in the changes of a view, as a short text.
//!
//! The server keeps no state about readers. A cursor holds a time and a fingerprint of the view:
//! the number of workers, a hash of their names, and a hash of their state. The time selects the
//! changes; the fingerprint detects changes without a newer time, and workers that are gone.
//!
//! ```text
//! 0                                                 everything
//! 1763791234567890123                               since this time, in nanoseconds since 1970
//! 1763791234567890123-12-9f3ac1d2-77aa01bc12345678  since then, with the view's fingerprint
//! FROM.TIME.HASH-12-9f3ac1d2-77aa01bc12345678       since FROM, from the worker at TIME and HASH
//! FROM+TIME+HASH-12-9f3ac1d2-77aa01bc12345678       likewise if unchanged, else since FROM
//! now                                               no changes, only a cursor
//! ```

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cursor {
    /// After all changes so far.
    Now,
    Since(Checkpoint),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// Changes at this time or later are reported; nanoseconds since 1970.
    pub from: u64,
    /// Position from which a partial answer is continued.
    pub resume: Option<ResumePoint>,
    pub fingerprint: Option<ViewFingerprint>,
}

/// The first worker that has not been reported yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResumePoint {
    pub at: ChangePosition,
    /// True if no later change can sort before `at`, because newer times have been seen.
    pub settled: bool,
}

/// The position of a worker in the order of changes: the time of its newest change, then a hash of
/// its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChangePosition {
    pub time: u64,
    pub name_hash: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ViewFingerprint {
    pub workers: u64,
    /// Wrapping sum of the hashes of their names, so that workers can be added.
    pub names: u32,
    pub state: u64,
}

impl Cursor {
    /// The cursor before all changes.
    pub const ALL: Cursor = Cursor::Since(Checkpoint { from: 0, resume: None, fingerprint: None });

    /// Parses a cursor. Accepts only the canonical form that [`Cursor`] displays as.
    ///
    /// # Errors
    /// A message that lists the valid cursors.
    pub fn parse(text: &str) -> Result<Cursor, String> {
        if text == "now" {
            return Ok(Cursor::Now);
        }
        let cursor = parse_checkpoint(text).map(Cursor::Since);
        cursor.filter(|cursor| cursor.to_string() == text).ok_or_else(|| {
            format!(
                "`{}` is not a valid cursor; try the last line that `since` printed before, `now` to start from here, \
                 or `0` for everything",
                text.escape_debug()
            )
        })
    }
}

fn parse_checkpoint(text: &str) -> Option<Checkpoint> {
    let (time, fingerprint) = match text.split_once('-') {
        Some((time, fingerprint)) => (time, Some(parse_fingerprint(fingerprint)?)),
        None => (text, None),
    };
    let settled = time.contains('.');
    let mut parts = time.split(if settled { '.' } else { '+' });
    let from = parts.next()?.parse().ok()?;
    let resume = match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => None,
        (Some(time), Some(name_hash), None) => {
            let name_hash = u32::from_str_radix(name_hash, 16).ok()?;
            Some(ResumePoint {
                at: ChangePosition { time: time.parse().ok()?, name_hash },
                settled,
            })
        }
        _ => return None,
    };
    // A resume point is meaningless without the fingerprint of the view it belongs to.
    (resume.is_none() || fingerprint.is_some()).then_some(Checkpoint { from, resume, fingerprint })
}

fn parse_fingerprint(text: &str) -> Option<ViewFingerprint> {
    let mut parts = text.split('-');
    let (workers, names, state) = (parts.next()?, parts.next()?, parts.next()?);
    let fingerprint = ViewFingerprint {
        workers: workers.parse().ok()?,
        names: u32::from_str_radix(names, 16).ok()?,
        state: u64::from_str_radix(state, 16).ok()?,
    };
    parts.next().is_none().then_some(fingerprint)
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cursor::Since(Checkpoint { from, resume, fingerprint }) = self else {
            return f.write_str("now");
        };
        write!(f, "{from}")?;
        if let Some(ResumePoint { at, settled }) = resume {
            let dot = if *settled { '.' } else { '+' };
            write!(f, "{dot}{}{dot}{:08x}", at.time, at.name_hash)?;
        }
        match fingerprint {
            Some(ViewFingerprint { workers, names, state }) => {
                write!(f, "-{workers}-{names:08x}-{state:016x}")
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_cursor_parses_to_itself() {
        let fingerprint = Some(ViewFingerprint { workers: 12, names: 0x9f, state: 7 });
        let at = ChangePosition { time: u64::MAX, name_hash: 1 };
        for checkpoint in [
            Checkpoint { from: 0, resume: None, fingerprint: None },
            Checkpoint { from: u64::MAX, resume: None, fingerprint },
            Checkpoint { from: 5, resume: Some(ResumePoint { at, settled: true }), fingerprint },
            Checkpoint { from: 5, resume: Some(ResumePoint { at, settled: false }), fingerprint },
        ] {
            let text = Cursor::Since(checkpoint).to_string();
            assert_eq!(Cursor::parse(&text), Ok(Cursor::Since(checkpoint)), "{text}");
            assert!(
                text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+.".contains(&b)),
                "{text}"
            );
        }
        assert_eq!(Cursor::parse("0"), Ok(Cursor::ALL));
        assert_eq!(Cursor::parse("now"), Ok(Cursor::Now));
    }

    #[test]
    fn a_malformed_cursor_is_refused() {
        for text in [
            "",
            " ",
            "x",
            "-",
            "00",
            "+1",
            "-1",
            "1-",
            "1-2",
            "1-2-3-4",
            "1-2-0000000A-0000000000000000",
            "1-2-0000000a-0000000000000000-",
            "1-2-+000000a-0000000000000000",
            "1.2.00000000",
            "1.2-2-0000000a-0000000000000000",
            "1.2+00000000-2-0000000a-0000000000000000",
            "1.2.00000000.4-2-0000000a-0000000000000000",
            "18446744073709551616",
            "Now",
            "now\n",
            "0\u{661}",
        ] {
            let error = Cursor::parse(text).unwrap_err();
            assert!(error.contains("`now`"), "{text:?}: {error}");
        }
    }
}
