//! Sockets, FIFOs and devices outside, whatever they are called: they can be seen, and nothing
//! answers.
//!
//! Sockets of processes outside.

use std::fs::{self, File, OpenOptions};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::lifetime::await_that;
use super::{Place, for_each_user};

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Binds a socket that each user may connect to.
fn listen(path: &Path) -> UnixListener {
    let socket = UnixListener::bind(path).unwrap();
    open_to_all(path);
    socket
}

fn connect(path: &Path) -> String {
    format!("attempt(lambda: socket.socket(socket.AF_UNIX).connect('{}'))", path.display())
}

/// Promise: Nothing outside answers a command: no socket, FIFO or device, whatever its name is, but
/// for those that the caller admits and name services.
///
/// The names are those that ssh gives a socket after it was bound.
#[test]
fn socket_with_another_name_than_it_was_bound_to_is_dead() {
    for_each_user(|place| {
        let bound = place.path("home/bound.sock");
        let _socket = listen(&bound);
        let (linked, renamed) = (place.path("home/linked.sock"), place.path("home/renamed.sock"));
        fs::hard_link(&bound, &linked).unwrap();
        fs::rename(&bound, &renamed).unwrap();
        let code = [connect(&linked), connect(&renamed)].join("\n");
        let home = place.path("home");
        for options in [&[][..], &["--nested"], &["--write", home.to_str().unwrap()]] {
            place.fails_inside(options, &code, &["ECONNREFUSED"; 2]);
        }
        let (_, inside) = place.attack(&["--socket", linked.to_str().unwrap()], &code);
        assert_eq!(inside, ["ok", "ECONNREFUSED"], "an admitted socket must work");
    });
}

#[test]
fn socket_bound_by_a_relative_path_or_in_another_network_is_dead() {
    for_each_user(|place| {
        let home = place.path("home");
        let serve = |name: &str| {
            format!(
                "import os, socket, sys; os.chdir('{}'); s = socket.socket(socket.AF_UNIX); \
                 s.bind('{name}.new'); os.chmod('{name}.new', 0o777); s.listen(64); \
                 os.rename('{name}.new', '{name}'); sys.stdin.read()",
                home.display()
            )
        };
        let other_network = ["unshare", "--user", "--map-root-user", "--net"];
        let (near, far) = (serve("near"), serve("far"));
        let servers =
            [&[][..], &other_network].into_iter().zip([&near, &far]).map(|(namespace, code)| {
                let words = [namespace, &["python3", "-c", code]].concat();
                place.command(&words).stdin(Stdio::piped()).spawn().unwrap()
            });
        let mut servers: Vec<_> = servers.collect();
        let paths = ["near", "far"].map(|name| place.path("home").join(name));
        await_that("both servers listen", || paths.iter().all(|path| path.exists()));
        let code = paths.each_ref().map(|path| connect(path)).join("\n");
        for options in [&[][..], &["--nested"], &["--write", home.to_str().unwrap()]] {
            place.fails_inside(options, &code, &["ECONNREFUSED"; 2]);
        }
        for server in &mut servers {
            drop(server.stdin.take());
            server.wait().unwrap();
        }
    });
}

/// A socket that is made after the start is no way out either.
#[test]
fn socket_that_is_bound_later_is_dead() {
    for_each_user(|place| {
        let path = place.path("home/later.sock");
        let code = format!(
            "
import time
open(os.environ['SWARMLET_STORE'] + '/workers/' + os.environ['SWARMLET_WORKER'] + '/started', 'w')
while 'later.sock' not in os.listdir('{0}'):
    time.sleep(0.01)
{1}",
            place.path("home").display(),
            connect(&path)
        );
        let words = place.in_sandbox(&[], &["python3", "-c", &super::place::with_prelude(&code)]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let run = place.command(&words).stdout(Stdio::piped()).spawn().unwrap();
        let id = format!("store/workers/worker-{}/started", place.count());
        await_that("the command runs", || place.path(&id).exists());
        let _socket = listen(&path);
        let output = run.wait_with_output().unwrap();
        assert_eq!(super::place::text(&output.stdout), "ECONNREFUSED\n");
    });
}

#[test]
fn fifos_outside_cannot_be_written() {
    for_each_user(|place| {
        let fifo = place.path("home/fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        open_to_all(&fifo);
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let _reader: File = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nonblocking)
            .open(&fifo)
            .unwrap();
        let code = format!(
            "attempt(lambda: os.write(os.open('{}', os.O_WRONLY | os.O_NONBLOCK), b'x'))",
            fifo.display()
        );
        let (outside, inside) = place.attack(&[], &code);
        assert_eq!(outside, ["ok"]);
        assert_ne!(inside, ["ok"]);
        place.fails_inside(&["--nested"], &code, &["ENXIO"]);
    });
}

/// The permissions of devices are those of the groups of a user.
#[test]
fn devices_of_the_machine_are_not_there() {
    for_each_user(|place| {
        let said = place.shell(
            &["--nested"],
            "for path in $(find /dev | sort); do [ -L $path ] || ! [ -b $path -o -c $path ] || echo $path; done",
        );
        let devices: Vec<&str> = said.lines().collect();
        let ours = ["full", "null", "pts/ptmx", "random", "urandom", "zero"];
        assert_eq!(devices, ours.map(|name| format!("/dev/{name}")));
        let admitted = ["--nested", "--write", "/dev/full"];
        assert_eq!(place.shell(&admitted, "! echo x > /dev/full 2>/dev/null; echo $?"), "0\n");
    });
}

/// The host of a virtual machine has one space of such addresses for all network namespaces.
#[test]
fn sockets_to_the_host_cannot_be_made() {
    for_each_user(|place| {
        let code = "attempt(lambda: socket.socket(40, socket.SOCK_STREAM))";
        for options in [&[][..], &["--no-network"], &["--nested"]] {
            assert_eq!(place.attack_inside(options, code), ["EAFNOSUPPORT"]);
        }
    });
}

/// A command that could take the terminal of its caller would read what is typed next.
#[test]
fn command_without_a_terminal_does_not_get_the_callers() {
    for_each_user(|place| {
        let code = super::place::with_prelude("attempt(lambda: os.open('/dev/tty', os.O_RDWR))");
        let quote = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| super::place::quoted(word)).collect();
            words.join(" ")
        };
        let outside = quote(&["python3", "-c", &code]);
        let inside = place.in_sandbox(&[], &["python3", "-c", &code]);
        let inside = quote(&inside.iter().map(String::as_str).collect::<Vec<_>>());
        for (line, expected) in [(outside, "ok"), (inside, "ENOENT")] {
            // script(1) has a terminal, and the command has none of it.
            let line = format!("{line} </dev/null 2>&1 | cat");
            let said = place.plain(&["script", "-qec", &line, "/dev/null"]);
            assert_eq!(super::place::text(&said.stdout).trim(), expected, "{said:?}");
        }
    });
}

/// Two sandboxes, or ten, must not take all memory.
#[test]
fn temporary_directories_have_a_part_of_the_memory() {
    let place = Place::of_user();
    let code = "
total = sum(os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in ('/tmp', '/dev/shm'))
print(total * 5 < os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))
";
    assert_eq!(place.attack_inside(&[], code), ["True"]);
}

fn connect_code(path: &str) -> String {
    format!("attempt(lambda: socket.socket(socket.AF_UNIX).connect({path}))")
}

#[test]
fn sockets_outside_cannot_be_connected() {
    for_each_user(|place| {
        let path = place.path("home/agent.sock");
        let _socket = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let code = connect_code(&format!("'{}'", path.display()));
        place.fails_inside(&[], &code, &["ECONNREFUSED"]);
        place.fails_inside(
            &["--write", place.path("home").to_str().unwrap()],
            &code,
            &["ECONNREFUSED"],
        );
        let (_, inside) = place.attack(&["--socket", path.to_str().unwrap()], &code);
        assert_eq!(inside, ["ok"], "an admitted socket must work");
    });
}

#[test]
fn abstract_sockets_outside_cannot_be_connected() {
    for_each_user(|place| {
        let name = format!("sandbox-test-{}-{}", std::process::id(), place.uid);
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _socket = UnixListener::bind_addr(&address).unwrap();
        place.fails_inside(&[], &connect_code(&format!("'\\0{name}'")), &["EPERM"]);
        place.fails_inside(
            &["--nested", "--no-network"],
            &connect_code(&format!("'\\0{name}'")),
            &["ECONNREFUSED"],
        );
    });
}

#[test]
fn without_a_network_only_loopback_works() {
    for_each_user(|place| {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let code = format!(
            "
attempt(lambda: socket.create_connection(('127.0.0.1', {port})))
def own():
    server = socket.create_server(('127.0.0.1', 0))
    socket.create_connection(server.getsockname())
attempt(own)
"
        );
        place.fails_inside(&["--no-network"], &code, &["ECONNREFUSED", "ok"]);
    });
}
