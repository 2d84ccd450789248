//! `swarmletfs archive`: copies the sessions of other programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use super::exit::UsageError;
use super::mountinfo::FolderIdentity;
use super::mountpoint;
use super::terminal::{ProgressLine, QuietArg, display_path, print_message};
use super::tree_commands::format::human_size;
use super::write_args::{self, into_cli_error, survive_size_limits};
use crate::retention::{CopiedSessions, PathList, copy_sessions};
use crate::store::Disk;
use crate::text::count;
use crate::trace::KnownFormat;
use crate::trace::known::{Detected, FORMATS, SessionFiles, detect};

pub(super) const HELP: &str = "\
SOURCE is a program's folder, such as ~/.claude or ~/.codex, or a part of it with sessions. Only \
the folders of its sessions are copied, never its settings. DEST can be mounted as SOURCE could.

Only files that are new or have grown are copied. Nothing in DEST is ever removed or shortened: a \
file that was shortened is named and not copied; if one was rewritten, its former copy is kept \
beside, as NAME.former-1. Links and special files are not copied, but counted. Each file is \
replaced at once, so it can run at any time, for example by a timer: dist/ has units for systemd.

Examples:
  swarmletfs archive ~/.claude ~/sessions/claude
  swarmletfs mount ~/sessions/claude /mnt/swarm

Exit code: 0 if everything that is new was copied, 1 if not, 2 for a usage error.";

/// Arguments of `archive`.
#[derive(Debug, Args)]
pub(super) struct ArchiveArgs {
    /// The folder of a program with sessions
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

    /// The folder to copy them to; made if it is missing
    #[arg(value_name = "DEST")]
    dest: PathBuf,

    /// The format of the sessions [default: detected]
    #[arg(long, value_name = "NAME", value_parser = super::mount_options::format_names())]
    format: Option<String>,

    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// Copies the sessions.
///
/// # Errors
///
/// SOURCE has no sessions, one folder is in the other, or DEST cannot be written.
pub(super) fn run(arguments: &ArchiveArgs) -> anyhow::Result<ExitCode> {
    survive_size_limits()?;
    let format = match arguments.format.as_deref().and_then(KnownFormat::by_name) {
        Some(format) => format,
        None => detected(&arguments.source)?,
    };
    if matches!(format.session_files, SessionFiles::Store) {
        bail!(
            "cannot archive {}: it is a store of workers, which no program removes; try \
             `swarmletfs gc --archive DIR`",
            display_path(&arguments.source)
        );
    }
    if matches!(format.session_files, SessionFiles::Database) {
        bail!(
            "cannot archive {}: {} keeps its sessions in a database, which may hold its keys; \
             try `sqlite3 DATABASE '.backup COPY'`",
            display_path(&arguments.source),
            format.program.name
        );
    }
    check_places(&arguments.source, &arguments.dest)?;
    let progress = ProgressLine::without_counts("copying", QuietArg::new(arguments.quiet));
    let copied = copy_sessions(&arguments.source, &arguments.dest, format.session_files);
    drop(progress);
    let copied = copied.map_err(into_cli_error)?;
    let all_read = copied.unreadable.count == 0;
    if !arguments.quiet {
        report_problems(&copied);
    } else if !all_read {
        name_paths("could not be copied", &copied.unreadable);
    }
    let code = if arguments.quiet && !arguments.json {
        ExitCode::SUCCESS
    } else {
        write_args::print(arguments.json, &describe(&copied), &to_json(&copied))
    };
    Ok(if all_read { code } else { ExitCode::FAILURE })
}

fn detected(source: &Path) -> anyhow::Result<&'static KnownFormat> {
    let shown = display_path(source);
    let store = Disk::open(source).with_context(|| format!("cannot open {shown}"))?;
    match detect(&store).with_context(|| format!("cannot read {shown}"))? {
        Detected::Format(format) => Ok(format),
        Detected::OneWorker | Detected::Unknown { .. } => {
            let names: Vec<&str> = FORMATS
                .iter()
                .filter(|format| {
                    !matches!(format.session_files, SessionFiles::Store | SessionFiles::Database)
                })
                .map(|format| format.name)
                .collect();
            bail!(
                "cannot archive {shown}: it holds no sessions that are known; try the folder of \
                 the program, as ~/.claude, or --format with one of: {}",
                names.join(", ")
            )
        }
    }
}

/// Refuses to copy a folder into itself.
fn check_places(source: &Path, dest: &Path) -> anyhow::Result<()> {
    let mounts = mountpoint::read_mount_table()?;
    let source = FolderIdentity::resolve(source, &mounts)?;
    let dest = std::path::absolute(dest)?;
    let place = FolderIdentity::resolve_nearest(&dest, &mounts)?;
    // If `dest` is missing, the source may be in the directory above it.
    let is_inside = place.is_within(&source) || (dest.exists() && source.is_within(&place));
    if is_inside {
        return Err(UsageError(format!(
            "cannot archive to {}: one folder is in the other; try another folder",
            display_path(&dest)
        ))
        .into());
    }
    Ok(())
}

fn report_problems(copied: &CopiedSessions) {
    name_paths("was rewritten or replaced; its former copy is kept beside", &copied.rewritten);
    name_paths("is shorter than its copy, which stays", &copied.shrunk);
    name_paths("could not be copied", &copied.unreadable);
}

/// Prints a line for each path, and the number of the paths that are not named.
fn name_paths(what: &str, list: &PathList) {
    for path in &list.paths {
        print_message(&format!("{} {what}", path.display()));
    }
    let more = list.count - list.paths.len() as u64;
    if more > 0 {
        print_message(&format!("... and {more} more"));
    }
}

fn describe(copied: &CopiedSessions) -> String {
    let mut text = format!(
        "copied {} of {}: {} new, {} grown; {} unchanged",
        count(copied.new + copied.grown, "file"),
        human_size(copied.bytes),
        copied.new,
        copied.grown,
        copied.unchanged
    );
    if copied.skipped.count > 0 {
        text.push_str(&format!(
            "; skipped {}",
            count(copied.skipped.count, "link or special file")
        ));
    }
    text
}

fn to_json(copied: &CopiedSessions) -> serde_json::Value {
    let paths = |list: &PathList| -> Vec<String> {
        list.paths.iter().map(|path| path.to_text().into_owned()).collect()
    };
    json!({
        "new": copied.new,
        "grown": copied.grown,
        "unchanged": copied.unchanged,
        "bytes": copied.bytes,
        "rewritten": copied.rewritten.count,
        "shrunk": copied.shrunk.count,
        "skipped": copied.skipped.count,
        "unreadable": copied.unreadable.count,
        "rewritten_paths": paths(&copied.rewritten),
        "shrunk_paths": paths(&copied.shrunk),
        "skipped_paths": paths(&copied.skipped),
        "unreadable_paths": paths(&copied.unreadable),
    })
}
