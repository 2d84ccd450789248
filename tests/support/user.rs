//! Running code as another user.

use std::thread;

use rustix::fs::{Gid, Uid};

/// Runs `work` in a thread with the rights of this user and group only. Requires root.
pub fn as_user<T: Send>(id: u32, work: impl FnOnce() -> T + Send) -> T {
    let with_rights = || {
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_gid(Gid::from_raw(id)).unwrap();
        rustix::thread::set_thread_uid(Uid::from_raw(id)).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(with_rights).join().unwrap())
}
