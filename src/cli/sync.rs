//! `swarmletfs sync`: copies changed files of a folder or an object store to another one.
//!
//! `sync_ends` has the places that are copied to. This file decides which files are copied, and
//! in which order: the metadata of a worker last, as it was before its other files were read. So
//! whoever sees the end of a worker in the copy sees all of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::exit::UsageError;
use super::object_stores;
use super::sync_ends::{CopyError, FolderTarget, FoundCopy, SyncTarget};
use super::terminal::{display_path, print_message};
use super::tree_commands::format::human_size;
use super::write_args::{self, survive_size_limits};
use crate::error::Error as PathError;
use crate::name::RelPath;
use crate::parallel::parallel_waits;
use crate::store::{Disk, File, Kind, Meta, Store, Stream, Time, is_object_url, read_whole};
use crate::text::count;
use crate::trace::swarmlet::{
    AUDIT, DRAFTS, INDEX, METADATA, METADATA_MAX, REGISTRY, TOMBSTONES, WORKERS,
};
use swarmletfs_record::write;

pub(super) const HELP: &str = "\
SRC and DST are folders, or URLs such as s3://BUCKET/PREFIX, with a store of workers or with sessions \
of agent programs. A file is copied if it is missing in DST, or has another size, or the same size \
and another content: the ETag of an object tells that, or else the time of the last write. The \
metadata of a worker is copied after its other files. Nothing is ever deleted.

Not copied are links and special files, which are counted; files whose names cannot be keys; and \
audit/, drafts/, registry/, tombstones/ and index.json of a store. What the registry says of a worker \
is in the copy of its metadata.json.

Examples:
  swarmletfs sync ~/swarm s3://traces/run-48
  swarmletfs sync --dry-run ~/.claude s3://traces/laptop
  swarmletfs sync s3://traces/run-48 ~/copy

Exit code: 0 if everything that changed was copied, 1 if not, 2 for a usage error.";

const DEPTH_MAX: usize = 64;
/// Number of problems that are named.
const NAMED_MAX: usize = 20;
/// Times of different clocks decide only if they differ by more.
const SKEW: Duration = Duration::from_secs(15 * 60);
/// Directories in the root of a store that are about this copy of it.
const OWN: [&str; 5] = [AUDIT, DRAFTS, REGISTRY, TOMBSTONES, INDEX];

/// Arguments of `sync`.
#[derive(Debug, Args)]
pub(super) struct SyncArgs {
    /// The folder or URL to copy from
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// The folder or URL to copy to; made if it is missing
    #[arg(value_name = "DST")]
    dest: PathBuf,

    /// Print what would be copied, and copy nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// The work of a copy, done or planned.
#[derive(Debug, Default)]
struct SyncReport {
    new: u64,
    changed: u64,
    unchanged: u64,
    /// Size of the copied files, in bytes.
    bytes: u64,
    /// Links, special files, and entries whose names cannot be written.
    skipped: u64,
    failed: u64,
    problems: Vec<String>,
    /// Paths of the copied files, of a dry run only.
    paths: Vec<String>,
}

impl SyncReport {
    fn fail(&mut self, path: &RelPath, problem: &str) {
        self.failed += 1;
        if self.problems.len() < NAMED_MAX {
            self.problems.push(format!("{}: {problem}", path.display()));
        }
    }
}

/// Copies the changed files.
///
/// # Errors
///
/// SRC cannot be read, DST cannot be written, or one of them is in the other.
pub(super) fn run(arguments: &SyncArgs) -> anyhow::Result<ExitCode> {
    survive_size_limits()?;
    let source = open_source(&arguments.source)?;
    must_be_apart(&arguments.source, &arguments.dest)?;
    let target: Box<dyn SyncTarget> = match is_object_url(&arguments.dest) {
        true => object_stores::open_target(&arguments.dest)?,
        false => Box::new(FolderTarget::open(&arguments.dest, arguments.dry_run)?),
    };
    let recorded = match is_object_url(&arguments.source) {
        true => None,
        false => write::Store::open(&arguments.source).ok(),
    };
    let mut sync = Sync {
        source,
        is_local: !is_object_url(&arguments.source),
        recorded,
        copies: target.list()?,
        target,
        is_dry: arguments.dry_run,
        report: SyncReport::default(),
    };
    sync.copy()?;
    let report = sync.report;
    for problem in &report.problems {
        print_message(&format!("cannot copy {problem}"));
    }
    let mut text = describe(&report, arguments.dry_run);
    if arguments.dry_run && !report.paths.is_empty() {
        text = format!("{}\n{text}", report.paths.join("\n"));
    }
    let code = match arguments.quiet && !arguments.json {
        true => ExitCode::SUCCESS,
        false => write_args::print(arguments.json, &text, &to_json(&report)),
    };
    Ok(if report.failed == 0 { code } else { ExitCode::FAILURE })
}

fn open_source(path: &Path) -> anyhow::Result<Arc<dyn Store>> {
    if is_object_url(path) {
        return object_stores::open_source(path);
    }
    let shown = display_path(path);
    let disk = Disk::open(path).with_context(|| format!("cannot read {shown}"))?;
    Ok(Arc::new(disk))
}

/// Refuses to copy a place into itself.
fn must_be_apart(source: &Path, dest: &Path) -> anyhow::Result<()> {
    let place = |path: &Path| match is_object_url(path) {
        true => PathBuf::from(path.to_string_lossy().trim_end_matches('/')),
        // A missing folder has no links yet.
        false => std::fs::canonicalize(path)
            .or_else(|_| std::path::absolute(path))
            .unwrap_or_else(|_| path.to_path_buf()),
    };
    let (from, to) = (place(source), place(dest));
    if from.starts_with(&to) || to.starts_with(&from) {
        return Err(UsageError(format!(
            "cannot copy {} to {}: one is in the other; try another place",
            display_path(source),
            display_path(dest)
        ))
        .into());
    }
    Ok(())
}

struct Sync {
    source: Arc<dyn Store>,
    /// True if times of the source are those of this machine.
    is_local: bool,
    /// The source as a store that was recorded here.
    recorded: Option<write::Store>,
    /// The files that are in the target already.
    copies: BTreeMap<String, FoundCopy>,
    target: Box<dyn SyncTarget>,
    is_dry: bool,
    report: SyncReport,
}

/// How a file differs from its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    None,
    New,
    Changed,
}

impl Sync {
    fn copy(&mut self) -> anyhow::Result<()> {
        let root = RelPath::root();
        let top = self
            .source
            .list(&root)
            .with_context(|| format!("cannot read {}", self.source.describe()))?;
        let is_store = top
            .iter()
            .any(|entry| entry.kind == Kind::Folder && entry.name.as_bytes() == WORKERS.as_bytes());
        let mut folders = vec![root];
        let mut is_top = true;
        while let Some(folder) = folders.pop() {
            let entries = match self.source.list(&folder) {
                Err(error) if error.is_not_found() => continue,
                Err(error) => {
                    self.report.fail(&folder, &error.to_string());
                    continue;
                }
                Ok(entries) => entries,
            };
            let is_worker = entries.iter().any(|entry| {
                entry.kind == Kind::File && entry.name.as_bytes() == METADATA.as_bytes()
            });
            if is_worker && !(is_top && is_store) {
                self.copy_worker(&folder)?;
                continue;
            }
            let is_own =
                |name: &[u8]| is_top && is_store && OWN.iter().any(|own| own.as_bytes() == name);
            let mut files = Vec::new();
            for entry in entries.iter().filter(|entry| !is_own(entry.name.as_bytes())) {
                self.add(folder.join(&entry.name), entry.kind, &mut files, &mut folders);
            }
            self.copy_files(&files)?;
            is_top = false;
        }
        Ok(())
    }

    /// Adds an entry of the source to the files or the directories that are copied.
    fn add(
        &mut self,
        path: RelPath,
        kind: Kind,
        files: &mut Vec<RelPath>,
        folders: &mut Vec<RelPath>,
    ) {
        match kind {
            Kind::Link | Kind::Special => self.report.skipped += 1,
            Kind::Folder if path.depth() > DEPTH_MAX => self.report.fail(&path, "it is too deep"),
            Kind::Folder => folders.push(path),
            Kind::File if !self.target.can_name(&path) => self.report.skipped += 1,
            Kind::File => match self.source.stat(&path) {
                Ok(meta) if meta.kind == Kind::File => files.push(path),
                Ok(_) => self.report.skipped += 1,
                Err(error) if error.is_not_found() => {}
                Err(error) => self.report.fail(&path, &error.to_string()),
            },
        }
    }

    /// Copies the directory `folder`, which has metadata, and these at last.
    fn copy_worker(&mut self, folder: &RelPath) -> anyhow::Result<()> {
        let path = folder.join_path(&RelPath::constant(METADATA));
        // Read first: whoever writes the end of a worker has written everything else.
        let metadata = self.metadata(folder, &path);
        let mut folders = vec![folder.clone()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            match self.source.list(&folder) {
                Err(error) if error.is_not_found() => {}
                Err(error) => self.report.fail(&folder, &error.to_string()),
                Ok(entries) => {
                    for entry in entries {
                        self.add(folder.join(&entry.name), entry.kind, &mut files, &mut folders);
                    }
                }
            }
        }
        files.retain(|file| *file != path);
        let (failed, bytes) = (self.report.failed, self.report.bytes);
        self.copy_files(&files)?;
        match metadata {
            // Without all files, nobody must see the end.
            _ if self.report.failed > failed => {}
            Ok(Some((bytes, meta))) => self.copy_bytes(&path, &bytes, &meta)?,
            Ok(None) => {}
            Err(error) => self.report.fail(&path, &error.to_string()),
        }
        if self.report.bytes > bytes
            && !self.is_dry
            && folder.parent() == RelPath::constant(WORKERS)
        {
            self.announce(folder)?;
        }
        Ok(())
    }

    fn announce(&mut self, folder: &RelPath) -> anyhow::Result<()> {
        let Some(id) = folder.file_name() else { return Ok(()) };
        match self.target.announce(&id) {
            Err(CopyError::Fatal(error)) => Err(error),
            Err(CopyError::File(problem)) => {
                self.report.fail(folder, &problem);
                Ok(())
            }
            Ok(()) | Err(CopyError::Gone) => Ok(()),
        }
    }

    /// Reads the metadata of the worker in `folder`, as readers of the source see it.
    fn metadata(
        &self,
        folder: &RelPath,
        path: &RelPath,
    ) -> Result<Option<(Vec<u8>, Meta)>, PathError> {
        let meta = match self.source.stat(path) {
            Err(error) if error.is_not_found() => return Ok(None),
            meta => meta?,
        };
        let recorded = self.recorded.as_ref().zip(folder.file_name()).and_then(|(store, id)| {
            let worker = store.find_worker(&id).ok().flatten()?;
            (worker.path() == folder.to_text()).then_some(worker)
        });
        if let Some(worker) =
            recorded.filter(|worker| worker.registry_record().is_ok_and(|record| record.is_some()))
            && let Ok((_, bytes, _)) = worker.shown_metadata()
        {
            return Ok(Some((bytes, meta)));
        }
        Ok(read_whole(&*self.source, path, METADATA_MAX)?.map(|bytes| (bytes, meta)))
    }

    fn copy_files(&mut self, files: &[RelPath]) -> anyhow::Result<()> {
        let copied = parallel_waits(files, |path| self.copy_file(path));
        for (path, copied) in files.iter().zip(copied) {
            match copied {
                Ok((difference, bytes)) => self.count(path, difference, bytes),
                Err(CopyError::Fatal(error)) => return Err(error),
                Err(CopyError::File(problem)) => self.report.fail(path, &problem),
                Err(CopyError::Gone) => {}
            }
        }
        Ok(())
    }

    fn count(&mut self, path: &RelPath, difference: Difference, bytes: u64) {
        match difference {
            Difference::None => self.report.unchanged += 1,
            Difference::New => self.report.new += 1,
            Difference::Changed => self.report.changed += 1,
        }
        if difference != Difference::None {
            self.report.bytes += bytes;
            if self.is_dry {
                self.report.paths.push(path.display());
            }
        }
    }

    fn copy_file(&self, path: &RelPath) -> Result<(Difference, u64), CopyError> {
        let opened = match self.source.open(path) {
            Err(error) if error.is_not_found() => return Err(CopyError::Gone),
            opened => opened.map_err(|error| CopyError::File(error.to_string()))?,
        };
        // The file may have grown since it was listed.
        let meta = opened.meta().map_err(|error| CopyError::File(error.to_string()))?;
        let difference = self.difference(path, &*opened, &meta)?;
        if difference != Difference::None && !self.is_dry {
            let mut reader = Stream::of_range(&*opened, 0..meta.size);
            self.target.put(path, &mut reader, meta.mtime)?;
        }
        Ok((difference, meta.size))
    }

    /// Copies `bytes`, which were read before.
    fn copy_bytes(&mut self, path: &RelPath, bytes: &[u8], meta: &Meta) -> anyhow::Result<()> {
        let mut memory = BytesFile { bytes, meta: *meta };
        memory.meta.size = bytes.len() as u64;
        let copied = self.difference(path, &memory, &memory.meta).and_then(|difference| {
            if difference != Difference::None && !self.is_dry {
                self.target.put(path, &mut { bytes }, meta.mtime)?;
            }
            Ok(difference)
        });
        match copied {
            Ok(difference) => self.count(path, difference, bytes.len() as u64),
            Err(CopyError::Fatal(error)) => return Err(error),
            Err(CopyError::File(problem)) => self.report.fail(path, &problem),
            Err(CopyError::Gone) => {}
        }
        Ok(())
    }

    fn difference(
        &self,
        path: &RelPath,
        file: &dyn File,
        meta: &Meta,
    ) -> Result<Difference, CopyError> {
        let Some(copy) = self.copies.get(&*path.to_text()) else { return Ok(Difference::New) };
        if copy.size != meta.size || copy.is_in_parts {
            return Ok(Difference::Changed);
        }
        let same = |is_same| if is_same { Difference::None } else { Difference::Changed };
        let mut reader = Stream::of_range(file, 0..meta.size);
        if let Some(copied) = copy.copied {
            // An object may be replaced again in the second in which it was copied.
            let is_sure = meta.mtime.nanos > 0 || is_later(copied, meta.mtime);
            return match copy.modified == meta.mtime {
                true if is_sure => Ok(Difference::None),
                true => self.target.compare(path, &mut reader).map(same),
                false => Ok(Difference::Changed),
            };
        }
        if self.is_local
            && let Some(is_same) = self.target.has_content(copy, &mut reader)
        {
            return is_same.map(same).map_err(|error| CopyError::File(error.to_string()));
        }
        // The clocks of both places may differ.
        if is_later(copy.modified, meta.mtime) {
            return Ok(Difference::None);
        }
        self.target.compare(path, &mut reader).map(same)
    }
}

/// Returns true if `copied` is later than `written`, also if their clocks differ.
fn is_later(copied: Time, written: Time) -> bool {
    let later = copied.to_system().duration_since(written.to_system());
    later.is_ok_and(|later| later > SKEW)
}

/// A file whose bytes were read before.
struct BytesFile<'a> {
    bytes: &'a [u8],
    meta: Meta,
}

impl File for BytesFile<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, PathError> {
        Ok(crate::store::copy_from(self.bytes, offset, buffer))
    }

    fn meta(&self) -> Result<Meta, PathError> {
        Ok(self.meta)
    }
}

fn describe(report: &SyncReport, is_dry: bool) -> String {
    let mut text = format!(
        "{} {} ({}): {} new, {} changed; {} unchanged",
        if is_dry { "would copy" } else { "copied" },
        count(report.new + report.changed, "file"),
        human_size(report.bytes),
        report.new,
        report.changed,
        report.unchanged
    );
    for (number, what) in [(report.skipped, "skipped"), (report.failed, "failed")] {
        if number > 0 {
            text.push_str(&format!("; {number} {what}"));
        }
    }
    text
}

fn to_json(report: &SyncReport) -> serde_json::Value {
    json!({
        "new": report.new,
        "changed": report.changed,
        "unchanged": report.unchanged,
        "bytes": report.bytes,
        "skipped": report.skipped,
        "failed": report.failed,
    })
}
