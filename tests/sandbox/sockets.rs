//! Sockets of processes outside.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::for_each_user;

fn connect(path: &str) -> String {
    format!("attempt(lambda: socket.socket(socket.AF_UNIX).connect({path}))")
}

#[test]
fn sockets_outside_cannot_be_connected() {
    for_each_user(|place| {
        let path = place.path("home/agent.sock");
        let _socket = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let code = connect(&format!("'{}'", path.display()));
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
        place.fails_inside(&[], &connect(&format!("'\\0{name}'")), &["EPERM"]);
        place.fails_inside(
            &["--nested", "--no-network"],
            &connect(&format!("'\\0{name}'")),
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
