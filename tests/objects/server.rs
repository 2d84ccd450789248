//! A SeaweedFS on loopback, the object store of these tests.
//!
//! All tests of a process share one server, each with keys of its own. A shell ends it when the
//! process ends, however that happens, because its standard input closes then.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use swarmletfs_objects::{Bucket, ObjectSettings, OpenError};

use crate::support::{patience, skip};

/// Runs its arguments after the first until standard input ends. Then removes the directory that
/// the first argument names.
const KEEPER: &str = r#"folder=$1; shift
"$@" </dev/null >"$folder/log" 2>&1 & child=$!
read -r _
kill "$child"; wait "$child"
rm -rf "$folder""#;
pub const START: Duration = Duration::from_secs(60);
/// Bucket of all tests; it always has an object.
pub const BUCKET: &str = "swarm";
/// Bucket without objects.
pub const EMPTY_BUCKET: &str = "empty";
pub const ACCESS_KEY: &str = "tests";
pub const SECRET_KEY: &str = "a secret of the tests";
/// Ports of the server's parts, each with the option that sets it.
const PORTS: [&str; 8] = [
    "s3.port",
    "filer.port",
    "master.port",
    "volume.port",
    "s3.port.grpc",
    "filer.port.grpc",
    "master.port.grpc",
    "volume.port.grpc",
];

pub struct Server {
    s3_port: u16,
    filer_port: u16,
    _keeper: ChildStdin,
}

/// Returns the server. Reports a skip if the program is missing.
pub fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    let server = SERVER.get_or_init(|| Some(Server::start(&weed()?))).as_ref();
    if server.is_none() {
        skip("no SeaweedFS: scripts/setup installs it");
    }
    server
}

/// Returns the program, which scripts/setup installs with the packages of tests/requirements.txt.
fn weed() -> Option<PathBuf> {
    Some(target().join("python/bin/weed")).filter(|program| program.exists())
}

/// Returns the directory in which scripts/setup installs programs.
pub fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Returns a command that runs `program` in a new directory until its standard input ends, and the
/// directory, which also gets the log.
pub fn kept(program: &Path) -> (Command, PathBuf) {
    let folder = tempfile::tempdir().unwrap().keep();
    let mut command = Command::new("sh");
    command.args(["-c", KEEPER, "keeper"]).arg(&folder).arg(program).current_dir(&folder);
    command.env("HOME", &folder).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    (command, folder)
}

/// Returns ports that were free a moment ago.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let sockets = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port())
}

/// Encodes a key for a URL.
pub fn encoded(key: &str) -> String {
    let mut encoded = String::new();
    for byte in key.bytes() {
        match byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.') {
            true => encoded.push(char::from(byte)),
            false => write!(encoded, "%{byte:02X}").unwrap(),
        }
    }
    encoded
}

/// Sends a request to a server on loopback. Returns the status.
pub fn send(port: u16, head: &str, headers: &str, bytes: &[u8]) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(
        stream,
        "{head} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{headers}\
         Content-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
        bytes.len()
    )?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let status = answer.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    Ok(String::from_utf8_lossy(status).parse().unwrap_or_default())
}

/// Removes the variables of a web proxy, which would get requests to loopback, too.
pub fn without_proxy(command: &mut Command) -> &mut Command {
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env_remove(variable);
    }
    command
}

/// Calls `put` with each file beneath a directory and its key beneath `prefix`.
pub fn put_files(folder: &Path, prefix: &str, put: &dyn Fn(&str, Vec<u8>)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let key = format!("{prefix}/{}", path.file_name().unwrap().to_str().unwrap());
        match path.is_dir() {
            true => put_files(&path, &key, put),
            false => put(&key, fs::read(&path).unwrap()),
        }
    }
}

impl Server {
    fn start(program: &Path) -> Server {
        let ports = free_ports::<{ PORTS.len() }>();
        let (mut command, folder) = kept(program);
        command.args([
            "mini",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-admin.ui=false",
            "-webdav=false",
            "-s3.iam=false",
            // It reports to its makers by default.
            "-master.telemetry=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
        ]);
        for (option, port) in PORTS.iter().zip(&ports) {
            command.arg(format!("-{option}={port}"));
        }
        let mut dir = OsString::from("-dir=");
        dir.push(&folder);
        command
            .arg(dir)
            .env("S3_BUCKET", format!("{BUCKET},{EMPTY_BUCKET}"))
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        let keeper = command.spawn().unwrap().stdin.take().unwrap();
        let server = Server { s3_port: ports[0], filer_port: ports[1], _keeper: keeper };
        let begun = Instant::now();
        loop {
            let is_put =
                server.try_send("PUT", "ready", b"ready").is_ok_and(|status| status == 201);
            // Both buckets may be made late.
            let open =
                |url: &str| swarmletfs_objects::open_if_any(Path::new(url), &server.settings());
            let opened = [&url(""), &format!("s3://{EMPTY_BUCKET}")].map(|url| open(url));
            if is_put && opened.iter().all(Result::is_ok) {
                return server;
            }
            assert!(
                begun.elapsed() < patience(START),
                "{:?}: {}",
                opened.map(|opened| opened.err().map(|error| error.to_string())),
                fs::read_to_string(folder.join("log")).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.s3_port)
    }

    /// Returns settings to reach the server directly.
    pub fn settings(&self) -> ObjectSettings {
        settings_for(&self.address())
    }

    /// Opens the objects beneath `prefix`.
    pub fn open(&self, prefix: &str, settings: &ObjectSettings) -> Result<Bucket, OpenError> {
        swarmletfs_objects::open(Path::new(&url(prefix)), settings)
    }

    /// Sets the variables by which the program reaches the server.
    pub fn configure(&self, command: &mut Command) {
        without_proxy(command)
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.address()))
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    }

    /// Writes an object.
    pub fn put(&self, key: &str, bytes: impl AsRef<[u8]>) {
        assert_eq!(self.try_send("PUT", key, bytes.as_ref()).unwrap(), 201, "{key}");
    }

    pub fn delete(&self, key: &str) {
        assert_eq!(self.try_send("DELETE", key, b"").unwrap(), 204, "{key}");
    }

    /// Copies the files of a directory to the keys beneath `prefix`.
    pub fn copy(&self, folder: &Path, prefix: &str) {
        put_files(folder, prefix, &|key, bytes| self.put(key, bytes));
    }

    /// Sends a request to the part of the server that needs no signature. Returns the status.
    fn try_send(&self, method: &str, key: &str, bytes: &[u8]) -> std::io::Result<u16> {
        let head = format!("{method} /buckets/{BUCKET}/{}", encoded(key));
        send(self.filer_port, &head, "", bytes)
    }
}

pub fn url(prefix: &str) -> String {
    format!("s3://{BUCKET}/{prefix}")
}

/// Returns settings to reach the server at `address`, or a proxy before it.
pub fn settings_for(address: &str) -> ObjectSettings {
    let options = [
        ("aws_endpoint", format!("http://{address}")),
        ("aws_access_key_id", ACCESS_KEY.to_owned()),
        ("aws_secret_access_key", SECRET_KEY.to_owned()),
    ];
    ObjectSettings {
        options: options.map(|(key, value)| (key.to_owned(), value)).into(),
        ..ObjectSettings::default()
    }
}

/// Returns a prefix that no other test of any process has.
pub fn new_prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the bytes of a path for messages.
pub fn shown(path: &[u8]) -> String {
    std::ffi::OsStr::from_bytes(path).to_string_lossy().into_owned()
}
