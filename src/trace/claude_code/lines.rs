//! Open files that are made out of a transcript: a text that stays, and lines that grow.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::facts::{Chain, Facts, Piece, Span};
use super::layout::Place;
use super::line::{Turn, decode};
use super::read::{key, read_on};
use super::thread;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{File, Meta, read_range};

/// Reads the line at `span` and calls `take` with what is said there.
pub(super) fn turn_at<T>(file: &dyn File, span: Span, take: impl FnOnce(&Turn<'_>) -> T) -> Result<T> {
    let bytes = read_range(file, span.at, span.len)?;
    let mut taken = None;
    decode(&bytes, |line| taken = line.turn().map(|turn| take(&turn)));
    // It was read as such, and is none by now: the file was written over.
    taken.ok_or(Error::Stale)
}

/// A text that is made once and stays.
pub(super) struct Bytes {
    meta: Meta,
    bytes: Vec<u8>,
}

impl Bytes {
    pub(super) fn new(meta: Meta, bytes: Vec<u8>) -> Bytes {
        Bytes { meta, bytes }
    }
}

impl File for Bytes {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(copy(self.bytes.get(offset..).unwrap_or_default(), buffer))
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.meta)
    }
}

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let length = from.len().min(to.len());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    length
}

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// The lines themselves.
    Source,
    /// What they are in the thread.
    Thread,
}

/// A file that is made line by line and grows with its transcript.
pub(super) struct Lines {
    file: Box<dyn File>,
    place: Place,
    what: What,
    made: Meta,
    known: Mutex<Arc<Known>>,
    /// The line that was made last: who reads a long one does so in pieces.
    line: Mutex<Option<Made>>,
}

/// What was made of a line of a transcript as it was.
#[derive(Clone)]
struct Made {
    of: Span,
    transcript: Meta,
    bytes: Arc<[u8]>,
}

/// What a transcript told when it was last looked at, and of the conversation which call has which id.
struct Known {
    facts: Arc<Facts>,
    ids: HashMap<String, usize>,
}

impl Known {
    fn new(facts: Arc<Facts>, agent: Option<&Name>, what: What) -> Known {
        let chain = facts.chain(agent).filter(|_| what == What::Thread);
        let calls = chain.map(|chain| chain.calls.iter().enumerate()).into_iter().flatten();
        let ids = calls.map(|(at, call)| (call.id.clone(), at)).collect();
        Known { facts, ids }
    }
}

impl Lines {
    /// The file of `what`, made of the transcript `file` of `place` that tells `facts`; `made` is what stat tells of it.
    pub(super) fn new(file: Box<dyn File>, place: Place, what: What, made: Meta, facts: Arc<Facts>) -> Lines {
        let known = Arc::new(Known::new(facts, place.agent.as_ref(), what));
        Lines { file, place, what, made, known: Mutex::new(known), line: Mutex::new(None) }
    }

    /// What the transcript tells by now.
    fn known(&self) -> Result<(Arc<Known>, Meta)> {
        let transcript = self.file.meta()?;
        let held = self.known.lock().clone();
        if transcript.size <= held.facts.read || held.facts.too_long {
            return Ok((held, transcript));
        }
        // Side chains are told apart by what was read before.
        let before = if held.facts.has_side_chains { Facts::default() } else { (*held.facts).clone() };
        let (facts, _) = read_on(&*self.file, self.place.whose, before, &|| true)?;
        let known = Arc::new(Known::new(Arc::new(facts), self.place.agent.as_ref(), self.what));
        *self.known.lock() = known.clone();
        Ok((known, transcript))
    }

    fn end(&self, piece: &Piece) -> u64 {
        if self.what == What::Source { piece.source_end } else { piece.thread_end }
    }

    /// The same as [`Lines::made`], if need be made anew: of a transcript that changed all may be.
    fn line(&self, known: &Known, chain: &Chain, piece: &Piece, transcript: &Meta) -> Result<Arc<[u8]>> {
        let held = self.line.lock().clone();
        if let Some(held) = held.filter(|made| made.of == piece.span && made.transcript == *transcript) {
            return Ok(held.bytes);
        }
        let bytes: Arc<[u8]> = self.made(known, chain, piece)?.into();
        *self.line.lock() = Some(Made { of: piece.span, transcript: *transcript, bytes: bytes.clone() });
        Ok(bytes)
    }

    /// What is made of a line.
    fn made(&self, known: &Known, chain: &Chain, piece: &Piece) -> Result<Vec<u8>> {
        if self.what == What::Source {
            return read_range(&*self.file, piece.span.at, piece.span.len);
        }
        turn_at(&*self.file, piece.span, |turn| {
            let find = |id: &str| {
                let at = *known.ids.get(&key(id))?;
                let call = chain.calls.get(at).filter(|call| call.made <= piece.span.at)?;
                Some((at, call))
            };
            let mut out = Vec::new();
            // Writing into memory cannot fail.
            let _ = thread::write(&mut out, turn, &find);
            out
        })
    }
}

impl File for Lines {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let (known, transcript) = self.known()?;
        let chain = known.facts.chain(self.place.agent.as_ref()).ok_or(Error::Stale)?;
        let first = chain.lines.partition_point(|piece| self.end(piece) <= offset);
        let mut begin = first.checked_sub(1).and_then(|at| chain.lines.get(at)).map_or(0, |piece| self.end(piece));
        let mut filled = 0;
        for piece in chain.lines.iter().skip(first) {
            let end = self.end(piece);
            if end > begin {
                let bytes = self.line(&known, chain, piece, &transcript)?;
                if bytes.len() as u64 != end - begin {
                    return Err(Error::Stale);
                }
                let skip = usize::try_from(offset.saturating_sub(begin)).unwrap_or(usize::MAX);
                filled += copy(bytes.get(skip..).unwrap_or_default(), buffer.get_mut(filled..).unwrap_or_default());
            }
            begin = end;
            if filled == buffer.len() {
                break;
            }
        }
        Ok(filled)
    }

    fn meta(&self) -> Result<Meta> {
        let (known, transcript) = self.known()?;
        let chain = known.facts.chain(self.place.agent.as_ref()).ok_or(Error::Stale)?;
        let size = if self.what == What::Source { chain.source_bytes() } else { chain.thread_bytes() };
        Ok(Meta { size, mtime: transcript.mtime, ctime: transcript.ctime, ..self.made })
    }
}
