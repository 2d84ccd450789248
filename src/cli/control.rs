//! `swarmletfs attach` and `detach`, which change the stores of a mount while it is in use, and the
//! socket through which they reach the process that serves the mount.
//!
//! The socket is outside of the mount, in a directory of the serving user alone: a program that can
//! only read the mount must not be able to choose its stores. The name is the device number of the
//! mount. Both sides send one message and close: the client a [`StoreChange`], the server its
//! result.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::mountpoint::{read_mount_table, resolve};
use super::terminal::{ProgressLine, QuietArg, display_path, escape_controls, shell_quote};
use crate::fuse::catch_panic;
use crate::path_bytes;
use crate::store::is_object_url;

/// Largest message, in bytes. A path has at most 4,096.
const MESSAGE_MAX: u64 = 1 << 20;
/// Time that a client may take to send its request: others wait meanwhile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StoreChange {
    /// Shows this store, too. The path is absolute.
    Attach(#[serde(with = "path_bytes")] PathBuf),
    Detach(#[serde(with = "path_bytes")] PathBuf),
}

/// Reply of the server in one sentence: its change, or the reason why it changed nothing.
type ChangeReply = Result<String, String>;

/// The socket of a mount. Dropping it removes its file.
#[derive(Debug)]
pub(super) struct ControlSocket {
    path: PathBuf,
}

impl ControlSocket {
    /// Starts to answer requests about the mount of `device` (`major:minor`) on a new thread, with
    /// the result of `handle`.
    ///
    /// # Errors
    ///
    /// No directory for the socket can be made, or the system refuses the socket or the thread.
    pub(super) fn start(
        device: &str,
        handle: impl Fn(StoreChange) -> anyhow::Result<String> + Send + 'static,
    ) -> io::Result<ControlSocket> {
        let (listener, path) = listen(&file_name(device))?;
        let socket = ControlSocket { path };
        let serve = move || {
            for client in listener.incoming() {
                let answered = client.and_then(|client| answer(&client, &handle));
                if let Err(error) = answered {
                    info!("cannot answer a request to change the mount: {error}");
                }
            }
        };
        thread::Builder::new().name("control".into()).spawn(serve)?;
        Ok(socket)
    }

    /// Names the socket after another device when another mount takes the place of the first.
    pub(super) fn rename(&mut self, device: &str) -> io::Result<()> {
        let path = self.path.with_file_name(file_name(device));
        std::fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            info!("cannot remove the socket {}: {error}", display_path(&self.path));
        }
    }
}

fn answer(
    mut client: &UnixStream,
    handle: &dyn Fn(StoreChange) -> anyhow::Result<String>,
) -> io::Result<()> {
    client.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let user = rustix::net::sockopt::socket_peercred(client)?.uid;
    // The directory lets nobody else in; this holds even if somebody opens it up.
    let reply: ChangeReply = if user != rustix::process::geteuid() && !user.is_root() {
        Err("only the user who mounted it can change it".into())
    } else {
        let change: StoreChange = receive(client)?;
        info!(?change, "changing the mount");
        match catch_panic(|| handle(change)) {
            Some(handled) => handled.map_err(|error| format!("{error:#}")),
            None => Err("the process that serves the mount panicked; its log says where".into()),
        }
    };
    client.write_all(&postcard::to_stdvec(&reply).map_err(io::Error::other)?)
}

fn receive<T: for<'de> Deserialize<'de>>(client: &UnixStream) -> io::Result<T> {
    let mut bytes = Vec::new();
    client.take(MESSAGE_MAX).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Sends `change` to the process that serves the mount at `mountpoint`, and returns its reply.
///
/// # Errors
///
/// Nothing of this program is mounted there, its process cannot be reached, or it refuses.
pub(super) fn send(mountpoint: &Path, change: &StoreChange) -> anyhow::Result<String> {
    let mounts = read_mount_table()?;
    let point = resolve(mountpoint, &mounts)
        .with_context(|| format!("cannot find the mount {}", display_path(mountpoint)))?;
    let (here, quoted) = (display_path(&point), shell_quote(&point));
    let Some(mount) = mounts.at(&point).filter(|mount| mount.is_ours()) else {
        bail!("no swarmletfs is mounted on {here}; try `swarmletfs mount STORE {quoted}`");
    };
    let mut server = connect(&mount.device).with_context(|| {
        format!(
            "cannot reach the process that serves {here}; run this as the user who mounted it, and \
             outside of a sandbox"
        )
    })?;
    let sent = postcard::to_stdvec(change)?;
    server.write_all(&sent).and_then(|()| server.shutdown(Shutdown::Write))?;
    let reply: ChangeReply = receive(&server)
        .with_context(|| format!("the process that serves {here} ended without an answer"))?;
    reply.map_err(|reason| anyhow::anyhow!("{}", escape_controls(&reason)))
}

fn connect(device: &str) -> io::Result<UnixStream> {
    let (name, folders) = (file_name(device), folders());
    let names: Vec<String> = folders.iter().map(|folder| display_path(folder)).collect();
    let mut last =
        io::Error::new(ErrorKind::NotFound, format!("there is no {name} in {}", names.join(", ")));
    for folder in folders {
        let connected =
            check_private(&folder).and_then(|()| UnixStream::connect(folder.join(&name)));
        match connected {
            Ok(server) => return Ok(server),
            // The directory of the mount's process may be a later one.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn file_name(device: &str) -> String {
    format!("mount-{}.sock", device.replace(':', "-"))
}

/// Returns the directories for sockets of this user's mounts, the best first. A service and a login
/// of one user have different variables, so all are searched.
fn folders() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let variable = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut folders: Vec<PathBuf> =
        variable.into_iter().filter(|path| path.is_absolute()).collect();
    folders.push(if uid.is_root() { "/run".into() } else { format!("/run/user/{uid}").into() });
    folders.iter_mut().for_each(|folder| folder.push("swarmletfs"));
    folders.push(std::env::temp_dir().join(format!("swarmletfs-{uid}")));
    folders.dedup();
    folders
}

/// Creates a socket called `name` in the first of [`folders`] where that is possible. Returns it
/// with its path.
fn listen(name: &str) -> io::Result<(UnixListener, PathBuf)> {
    let listen_in = |folder: PathBuf| {
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => check_private(&folder)?,
        }
        let path = folder.join(name);
        // The device number of an ended mount may be used again.
        remove(&path)?;
        Ok((UnixListener::bind(&path)?, path))
    };
    let mut last = io::Error::from(ErrorKind::NotFound);
    for folder in folders() {
        match listen_in(folder) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Checks that the directory is this user's, and that no other user can enter it.
fn check_private(folder: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(folder)?;
    let is_own = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    if !is_own || meta.mode() & 0o077 != 0 {
        let folder = display_path(folder);
        return Err(io::Error::other(format!("{folder} is not a folder of this user alone")));
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) const ATTACH_HELP: &str = "\
The mount stays: readers see the old workers or the old and the new ones, and what is open stays
open. Worker ids do not change; if a new worker has the id of another, its name gets a number, such
as m1~2.

Examples:
  swarmletfs attach ~/swarm /data/run-8
  swarmletfs detach ~/swarm /data/run-7";

pub(super) const DETACH_HELP: &str = "\
The mount stays: readers see the workers of all stores or of the remaining ones, and what is open
stays open. The last store of a mount cannot be detached.

Example:
  swarmletfs detach ~/swarm /data/run-7";

/// Arguments of `attach` and of `detach`.
#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// The mountpoint
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,

    /// The folder of traces, or a single transcript
    #[arg(value_name = "STORE")]
    store: PathBuf,

    #[command(flatten)]
    quiet: QuietArg,
}

pub(super) fn attach(arguments: &AttachArgs) -> anyhow::Result<ExitCode> {
    send_change(arguments, StoreChange::Attach)
}

pub(super) fn detach(arguments: &AttachArgs) -> anyhow::Result<ExitCode> {
    send_change(arguments, StoreChange::Detach)
}

fn send_change(
    arguments: &AttachArgs,
    change: fn(PathBuf) -> StoreChange,
) -> anyhow::Result<ExitCode> {
    let store = match is_object_url(&arguments.store) {
        true => arguments.store.clone(),
        false => std::path::absolute(&arguments.store).context("cannot use an empty path")?,
    };
    let progress = ProgressLine::without_counts("waiting for the mount", arguments.quiet);
    let sent = send(&arguments.mountpoint, &change(store));
    drop(progress);
    arguments.quiet.inform(&sent?);
    Ok(ExitCode::SUCCESS)
}
