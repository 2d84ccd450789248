//! The loopback device of a new network namespace, which is down at first.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::cause::{FailedStep, StageFailure};

const RTM_NEWLINK: u16 = 16;

/// Flags of a request that is answered in any case.
const REQUEST_WITH_ANSWER: u16 = 0x1 | 0x4;

const LOOPBACK: i32 = 1;

const UP: u32 = 1;

/// Size of the request, in bytes: a header and the description of a device.
const REQUEST_SIZE: u32 = 32;

/// Offset of the errno in an answer, in bytes.
const ERRNO_OFFSET: usize = 16;

/// Brings the loopback device up, so that programs can talk to themselves.
pub(super) fn bring_up() -> Result<(), StageFailure> {
    change().step_with("bring the loopback device up", |_| {
        Some("try with the network, without `--no-network`")
    })
}

fn change() -> rustix::io::Result<()> {
    // Protocol 0 of netlink is for network devices.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let mut request = Vec::new();
    request.extend(REQUEST_SIZE.to_ne_bytes());
    request.extend(RTM_NEWLINK.to_ne_bytes());
    request.extend(REQUEST_WITH_ANSWER.to_ne_bytes());
    // The number of the request and of the sender, then the family and kind of the device.
    request.extend([0; 12]);
    request.extend(LOOPBACK.to_ne_bytes());
    // The flags, and the mask of the flags to change.
    request.extend(UP.to_ne_bytes());
    request.extend(UP.to_ne_bytes());
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    recv(&socket, &mut answer, RecvFlags::empty())?;
    match answer.get(ERRNO_OFFSET..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(&[0, 0, 0, 0]) => Ok(()),
        Some(errno) => Err(Errno::from_raw_os_error(-i32::from_ne_bytes(*errno))),
        None => Err(Errno::IO),
    }
}
