//! The terminal of the caller.

use super::for_each_user;

/// Types a character into a terminal of its own, by both requests that can.
const TYPE: &str = "
import pty, termios
leader, follower = pty.openpty()
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
    attempt(lambda: fcntl.ioctl(follower, termios.TIOCSTI, b'x'))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
";

#[test]
fn characters_cannot_be_typed_into_the_terminal() {
    if std::fs::read("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|value| value == b"0\n") {
        return crate::support::skip("the kernel forbids TIOCSTI");
    }
    for_each_user(|place| place.fails_inside(&[], TYPE, &["EPERM"]));
}

/// A terminal of this kind has no such request, but the filter refuses it before.
#[test]
fn request_that_pastes_into_a_console_is_refused() {
    let code = "
import pty
leader, follower = pty.openpty()
attempt(lambda: fcntl.ioctl(follower, 0x541c, b'\\x02' + bytes(15)))
";
    for_each_user(|place| {
        let (outside, inside) = place.attack(&[], code);
        assert_ne!(outside, ["EPERM"]);
        assert_eq!(inside, ["EPERM"]);
    });
}
