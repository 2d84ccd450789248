//! The programs that read a mount: the files and directories that they open, for the log of reads,
//! and the lookups that the kernel counts for them when it receives a listing.
//!
//! The log has paths as they were looked up, so names are kept here until the kernel forgets their
//! inodes.
//!
//! Threads that read attributes of the files that they list, such as the threads of `ls -l` and
//! `grep -r`, receive attributes with each listing, which saves a lookup of each file. Other
//! threads, such as the threads of `find`, receive attributes of directories only, since they
//! request no others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fuser::Request;
use jiff::Timestamp;
use parking_lot::Mutex;

use swarmletfs_base::error::{Error, Result};
use swarmletfs_record::read_log::{ABSENT, OK, Process, ReadEntry, ReadLog};
use swarmletfs_tree::route::ContentKind;
use swarmletfs_tree::tree::{Ino, ROOT, Tree};

const DEPTH_MAX: usize = 256;

const PROGRAMS_MAX: usize = 1_024;
/// Time for which the name of a process is kept: it may become another program.
const PROGRAM_TTL: Duration = Duration::from_secs(1);

pub(super) struct OpenTrail {
    log: ReadLog,
    /// The properties of processes, each with the time at which they were read.
    processes: Mutex<HashMap<u32, (Instant, Process)>>,
    names: Mutex<HashMap<Ino, NameIn>>,
}

type NameIn = (Ino, Arc<[u8]>);

#[derive(Debug, Clone, Copy)]
pub(super) struct Reader {
    uid: u32,
    pid: u32,
}

impl From<&Request> for Reader {
    fn from(request: &Request) -> Reader {
        Reader { uid: request.uid(), pid: request.pid() }
    }
}

impl OpenTrail {
    pub(super) fn new(log: ReadLog) -> OpenTrail {
        OpenTrail { log, processes: Mutex::default(), names: Mutex::default() }
    }

    fn process(&self, pid: u32) -> Process {
        if let Some((read, process)) = self.processes.lock().get(&pid)
            && read.elapsed() < PROGRAM_TTL
        {
            return process.clone();
        }
        let process = self.log.process(pid);
        let mut processes = self.processes.lock();
        if processes.len() >= PROGRAMS_MAX {
            processes.clear();
        }
        processes.insert(pid, (Instant::now(), process.clone()));
        process
    }

    /// Keeps the name of an inode that was looked up, or records the miss.
    pub(super) fn looked_up(&self, reader: Reader, parent: Ino, name: &[u8], found: Result<Ino>) {
        match found {
            Ok(ino) => {
                self.names.lock().insert(ino, (parent, name.into()));
            }
            Err(error) => {
                let path = [&*self.path(parent), b"/", name].concat();
                self.add(reader, &path, None, Some(&error));
            }
        }
    }

    /// Forgets the name of an inode, unless `is_known` returns true. It states whether the kernel
    /// still has the inode.
    pub(super) fn forget(&self, ino: Ino, is_known: impl FnOnce() -> bool) {
        // The kernel counts a concurrent lookup already, or the lookup adds the name afterwards.
        let mut names = self.names.lock();
        if !is_known() {
            names.remove(&ino);
        }
    }

    /// Records an open with the kind and the size of the opened entry, or with the error.
    pub(super) fn opened(
        &self,
        reader: Reader,
        ino: Ino,
        opened: Result<(ContentKind, Option<u64>), &Error>,
    ) {
        let path = self.path(ino);
        match opened {
            Ok(opened) => self.add(reader, &path, Some(opened), None),
            // The kernel looks the name up again, and opens the entry that it finds.
            Err(Error::Stale) => {}
            Err(error) => self.add(reader, &path, None, Some(error)),
        }
    }

    fn add(
        &self,
        reader: Reader,
        path: &[u8],
        opened: Option<(ContentKind, Option<u64>)>,
        error: Option<&Error>,
    ) {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let Process { program, parent } = self.process(reader.pid);
        self.log.add(ReadEntry {
            time: Timestamp::now(),
            uid: reader.uid,
            pid: reader.pid,
            program,
            parent,
            path: String::from_utf8_lossy(path).into_owned(),
            kind: opened.map(|(kind, _)| kind),
            bytes: opened.and_then(|(_, bytes)| bytes),
            result: match error {
                None => OK.to_owned(),
                Some(error) if error.is_miss() => ABSENT.to_owned(),
                Some(error) => error.to_string(),
            },
            lost: 0,
            removed: 0,
        });
    }

    fn path(&self, ino: Ino) -> Vec<u8> {
        let (names, mut at) = (self.names.lock(), ino);
        let mut parts: Vec<Arc<[u8]>> = Vec::new();
        while at != ROOT && parts.len() < DEPTH_MAX {
            let Some((parent, name)) = names.get(&at) else { break };
            parts.push(name.clone());
            at = *parent;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        path
    }
}

/// Number of threads to remember. Of several threads with the same remainder, only the last one is
/// remembered.
const THREADS: usize = 64;

const NO_THREAD: u32 = u32::MAX;

/// The threads that looked up files last. The kernel reports 0 for all threads of other PID
/// namespaces: they count as one.
pub(super) struct AttrReaders([AtomicU32; THREADS]);

impl Default for AttrReaders {
    fn default() -> AttrReaders {
        AttrReaders([const { AtomicU32::new(NO_THREAD) }; THREADS])
    }
}

impl AttrReaders {
    /// Records that a thread, by the number that the kernel reports, looked up a file.
    pub(super) fn note(&self, thread: u32) {
        self.slot(thread).inspect(|slot| slot.store(thread, Ordering::Relaxed));
    }

    pub(super) fn contains(&self, thread: u32) -> bool {
        self.slot(thread).is_some_and(|slot| slot.load(Ordering::Relaxed) == thread)
    }

    fn slot(&self, thread: u32) -> Option<&AtomicU32> {
        self.0.get(thread as usize % THREADS)
    }
}

/// Lookups of the entries of a listing that is being written. Gives them back if it is not sent.
pub(super) struct ListedLookups<'t> {
    tree: &'t Tree,
    inos: Vec<Ino>,
}

impl<'t> ListedLookups<'t> {
    pub(super) fn new(tree: &'t Tree) -> ListedLookups<'t> {
        ListedLookups { tree, inos: Vec::new() }
    }

    /// Takes over a lookup that the tree has counted.
    pub(super) fn push(&mut self, ino: Ino) {
        self.inos.push(ino);
    }

    /// Counts a lookup of an inode that comes without attributes.
    pub(super) fn count(&mut self, ino: Ino) {
        self.tree.count_listed(ino);
        self.inos.push(ino);
    }

    pub(super) fn pop(&mut self) {
        self.inos.pop().inspect(|ino| self.tree.forget(*ino, 1));
    }

    pub(super) fn leave_to_kernel(mut self) {
        self.inos.clear();
    }
}

impl Drop for ListedLookups<'_> {
    fn drop(&mut self) {
        for ino in &self.inos {
            self.tree.forget(*ino, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thread_of_each_slot_is_known() {
        let readers = AttrReaders::default();
        assert!(!readers.contains(5) && !readers.contains(0));
        readers.note(5);
        readers.note(6);
        assert!(readers.contains(5) && readers.contains(6));
        readers.note(5 + THREADS as u32);
        assert!(!readers.contains(5) && readers.contains(6));
    }
}
