//! A mount while it is served: its stores can be attached, detached and replaced.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::control::{ControlSocket, StoreChange};
use super::mountinfo::{FolderIdentity, Mount, MountTable};
use super::mountpoint::{check_apart, identify_store, read_mount_table};
use super::plan::{MountContent, MountedSession, Plan};
use super::teardown::{UnmountMode, unmount};
use super::terminal::display_path;
use super::{log, probe};
use crate::fuse::{Session, catch_panic};

pub(super) struct LiveMount {
    /// Locked while the stores change.
    served: Mutex<Served>,
    place: Arc<Mutex<MountPlace>>,
}

struct Served {
    plan: Plan,
    session: Arc<Session>,
    /// Error of the last attempt to serve a store that replaced another, if it failed.
    last_error: Option<String>,
}

pub(super) struct MountPlace {
    /// Device of the mount (`major:minor`). Its mountpoint may be moved or covered at any time.
    pub(super) device: String,
    /// The socket for changes of the stores, if there can be one.
    pub(super) socket: Option<ControlSocket>,
}

impl LiveMount {
    pub(super) fn new(plan: Plan, mounted: MountedSession) -> Arc<LiveMount> {
        let MountedSession { session, device } = mounted;
        let place = MountPlace { device: device.clone(), socket: None };
        let live = Arc::new(LiveMount {
            served: Mutex::new(Served { plan, session: Arc::new(session), last_error: None }),
            place: Arc::new(Mutex::new(place)),
        });
        let shared = live.clone();
        match ControlSocket::start(&device, move |change| shared.handle(change)) {
            Ok(socket) => live.place.lock().socket = Some(socket),
            Err(error) => info!("no store can be attached or detached: {error}"),
        }
        live
    }

    /// Returns the place of the mount. It is locked while one mount replaces another, so that a
    /// signal then ends the new one.
    pub(super) fn place(&self) -> Arc<Mutex<MountPlace>> {
        self.place.clone()
    }

    /// Waits up to `limit` for the mount to end. Returns true if it has ended.
    pub(super) fn has_ended(&self, limit: Duration) -> bool {
        let session = self.served.lock().session.clone();
        session.has_ended(limit)
    }

    fn handle(&self, change: StoreChange) -> anyhow::Result<String> {
        match change {
            StoreChange::Attach(store) => self.attach(store),
            StoreChange::Detach(store) => self.detach(&store),
        }
    }

    fn attach(&self, store: PathBuf) -> anyhow::Result<String> {
        let mut served = self.served.lock();
        let Served { plan, session, .. } = &mut *served;
        let shown = display_path(&store);
        plan.check_stores_can_change()?;
        if !store.is_absolute() {
            bail!("cannot attach {shown}: the path is not absolute");
        }
        let mounts = read_mount_table()?;
        let mut identities: Vec<FolderIdentity> = Vec::new();
        for known in &plan.options.stores {
            identify_store(known.clone(), &mut identities, &mounts)?;
        }
        let known = identities.len();
        let Some(store) = identify_store(store, &mut identities, &mounts)? else {
            bail!("cannot attach {shown}: the mount shows it already");
        };
        let added = identities.split_off(known);
        let point = FolderIdentity::new(plan.mountpoint.clone(), &mounts);
        let point = point.with_context(|| format!("cannot attach {shown}"))?;
        check_apart(&point, &added)?;
        if let Some(log) = &plan.options.log {
            log::check_place(log, &added, &point)?;
        }
        let mut changed = plan.clone();
        changed.options.stores.push(store);
        let description =
            show(session, &changed).with_context(|| format!("cannot attach {shown}"))?;
        *plan = changed;
        Ok(format!("attached {shown}; the mount shows {description}"))
    }

    fn detach(&self, store: &Path) -> anyhow::Result<String> {
        let mut served = self.served.lock();
        let Served { plan, session, .. } = &mut *served;
        let shown = display_path(store);
        plan.check_stores_can_change()?;
        let stores = &plan.options.stores;
        // A store that is gone no longer has another name.
        let resolved = probe::resolve(store).unwrap_or_else(|_| store.to_path_buf());
        let Some(at) = stores.iter().position(|known| *known == resolved || known == store) else {
            let names: Vec<String> = stores.iter().map(|store| display_path(store)).collect();
            bail!(
                "cannot detach {shown}: the mount does not show it; it shows {}",
                names.join(", ")
            );
        };
        if stores.len() == 1 {
            bail!(
                "cannot detach {shown}: the mount shows no other store; attach another one first, or \
                 try `swarmletfs umount`"
            );
        }
        let mut changed = plan.clone();
        changed.options.stores.remove(at);
        let description =
            show(session, &changed).with_context(|| format!("cannot detach {shown}"))?;
        *plan = changed;
        Ok(format!("detached {shown}; the mount shows {description}"))
    }

    /// Mounts again if a store was replaced by another one. An invalid new store does not end the
    /// old mount.
    ///
    /// # Errors
    ///
    /// The old mount is gone, and the new one cannot be mounted.
    pub(super) fn remount_if_replaced(&self) -> anyhow::Result<()> {
        let mut served = self.served.lock();
        let Served { plan, session, last_error } = &mut *served;
        if !session.is_replaced() {
            *last_error = None;
            return Ok(());
        }
        let read = catch_panic(|| plan.read())
            .unwrap_or_else(|| Err(anyhow!("reading the new store panicked")));
        let content = match read {
            Ok(content) => content,
            Err(error) => {
                let why = format!("{error:#}");
                if last_error.as_ref() != Some(&why) {
                    warn!(
                        "cannot serve the store that replaced the old one; the old one stays: {why}"
                    );
                    *last_error = Some(why);
                }
                return Ok(());
            }
        };
        let mut place = self.place.lock();
        let mounts = MountTable::read()?;
        let old: Vec<&Mount> = mounts.with_device(&place.device).collect();
        if old.is_empty() {
            // The user has just unmounted it.
            return Ok(());
        }
        old.iter().try_for_each(|mount| unmount(&mount.point, UnmountMode::Detached))?;
        let description = content.description.clone();
        let mounted = plan
            .mount(content)
            .context("the store was replaced, but the new one cannot be mounted")?;
        *session = Arc::new(mounted.session);
        if let Some(socket) = &mut place.socket {
            socket.rename(&mounted.device).context("cannot rename the socket of the mount")?;
        }
        place.device = mounted.device;
        info!("the store was replaced by another folder, which is now served: {description}");
        Ok(())
    }
}

/// Reads the stores of `plan` and shows them in the mount of `session`. Returns a description of
/// the mount.
fn show(session: &Session, plan: &Plan) -> anyhow::Result<String> {
    let MountContent { views, description } = plan.read()?;
    let mut views = views.into_iter();
    let shown = session.show(|tree| views.next().map(|view| tree.with_view(view)));
    shown.context("the system refuses more threads")?;
    Ok(description)
}
