//! What a reader has seen of a view, as a short text: nothing is kept of a reader anywhere else.
//!
//! A cursor is a time, and what the view looked like then: how many workers, which, and in which state. The time leads to
//! what changed since; the rest tells whether anything did, and how many workers are gone. All of it is taken from the
//! view alone.
//!
//! ```text
//! 0                                                       everything is new
//! 1763791234567890123                                     what changed since this time (nanoseconds since 1970)
//! 1763791234567890123-12-9f3ac1d2-77aa01bc12345678        the same, and how many workers, which, and their state
//! FROM.TIME.ORDER-12-9f3ac1d2-77aa01bc12345678            changed since FROM; told up to the worker at TIME and ORDER
//! FROM+TIME+ORDER-12-9f3ac1d2-77aa01bc12345678            the same while the state is this one, else told from FROM on
//! now                                                     no changes, only a cursor
//! ```

use std::fmt;

/// What has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cursor {
    /// Everything that is there now.
    Now,
    /// What is older than a mark.
    Since(Mark),
}

/// A point in the changes of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// What changed at this time or later is told; nanoseconds since 1970.
    pub(super) from: u64,
    /// How far that has been told already.
    pub(super) page: Option<Page>,
    /// What was there then.
    pub(super) memory: Option<Memory>,
}

/// The first worker that has not been told, in the order they are told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Page {
    pub(super) at: Place,
    /// Whether nothing can change any more in front of it, whatever else does: later times have been seen.
    pub(super) settled: bool,
}

/// Where a worker stands among the others: the time of its newest change, and among equals a hash of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) time: u64,
    pub(super) order: u32,
}

/// What a view looked like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Memory {
    /// How many workers there are.
    pub(super) workers: u64,
    /// The sum of the hashes of their names, so that some can be taken out of it.
    pub(super) names: u32,
    /// Changes with any of them.
    pub(super) state: u64,
}

impl Cursor {
    /// Everything is new.
    pub const ALL: Cursor = Cursor::Since(Mark { from: 0, page: None, memory: None });

    /// Reads a cursor as it is written here, and in no other way. The error is a sentence.
    pub fn parse(text: &str) -> Result<Cursor, String> {
        if text == "now" {
            return Ok(Cursor::Now);
        }
        mark(text).map(Cursor::Since).filter(|cursor| cursor.to_string() == text).ok_or_else(|| {
            format!(
                "`{}` is no cursor: take the last line of what `since` printed before, `now` to begin with what comes, \
                 or `0` for everything",
                text.escape_debug()
            )
        })
    }
}

fn mark(text: &str) -> Option<Mark> {
    let (time, memory) = match text.split_once('-') {
        Some((time, memory)) => (time, Some(self::memory(memory)?)),
        None => (text, None),
    };
    let settled = time.contains('.');
    let mut parts = time.split(if settled { '.' } else { '+' });
    let from = parts.next()?.parse().ok()?;
    let page = match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => None,
        (Some(time), Some(order), None) => {
            let at = Place { time: time.parse().ok()?, order: u32::from_str_radix(order, 16).ok()? };
            Some(Page { at, settled })
        }
        _ => return None,
    };
    // How far something was told says nothing without what it was told of.
    (page.is_none() || memory.is_some()).then_some(Mark { from, page, memory })
}

fn memory(text: &str) -> Option<Memory> {
    let mut parts = text.split('-');
    let (workers, names, state) = (parts.next()?, parts.next()?, parts.next()?);
    let memory = Memory {
        workers: workers.parse().ok()?,
        names: u32::from_str_radix(names, 16).ok()?,
        state: u64::from_str_radix(state, 16).ok()?,
    };
    parts.next().is_none().then_some(memory)
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cursor::Since(Mark { from, page, memory }) = self else { return f.write_str("now") };
        write!(f, "{from}")?;
        if let Some(Page { at, settled }) = page {
            let dot = if *settled { '.' } else { '+' };
            write!(f, "{dot}{}{dot}{:08x}", at.time, at.order)?;
        }
        match memory {
            Some(Memory { workers, names, state }) => write!(f, "-{workers}-{names:08x}-{state:016x}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let memory = Some(Memory { workers: 12, names: 0x9f, state: 7 });
        let at = Place { time: u64::MAX, order: 1 };
        for mark in [
            Mark { from: 0, page: None, memory: None },
            Mark { from: u64::MAX, page: None, memory },
            Mark { from: 5, page: Some(Page { at, settled: true }), memory },
            Mark { from: 5, page: Some(Page { at, settled: false }), memory },
        ] {
            let text = Cursor::Since(mark).to_string();
            assert_eq!(Cursor::parse(&text), Ok(Cursor::Since(mark)), "{text}");
            assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+.".contains(&b)), "{text}");
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
