//! `swarmletfs doctor`: findings as text and JSON, exit codes, no changes, and no hangs.

pub mod machine;
mod mounts;
mod recording;
mod stores;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use super::program::{CommandOutput, check_printable, is_root, program, run};
use crate::support::mount::PROGRAM;
use crate::support::skip;

/// Script that hides the mounts of other tests, except those below a directory, and forbids a
/// system call by number; then it runs a program. It is Python, to unmount without access to the
/// mounts and to set a seccomp filter.
pub const ISOLATE_SCRIPT: &str = r"
import ctypes, os, re, struct, sys
libc = ctypes.CDLL(None)
keep, forbidden, program = os.fsencode(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
def others():
    for line in open('/proc/self/mountinfo', 'rb').readlines():
        point = re.sub(rb'\\(\d{3})', lambda found: bytes([int(found[1], 8)]), line.split(b' ')[4])
        if b' fuse.swarmletfs ' in line and not point.startswith(keep + b'/'):
            yield point
# Again and again, because only what lies on top can be taken away.
while any([libc.umount2(point, 2 | 8) == 0 for point in others()]):
    pass
if forbidden:
    rules = [(0x20, 0, 0, 0), (0x15, 0, 1, forbidden), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))
    class Program(ctypes.Structure):
        _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
    libc.prctl(38, 1, 0, 0, 0)
    assert libc.prctl(22, 2, ctypes.byref(Program(len(rules), ctypes.addressof(code))), 0, 0) == 0
os.execvp(program[0], program)
";

/// The machine's own PATH, independent of the user who runs the tests.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// True if namespaces and filters are permitted here.
static PERMITTED: LazyLock<bool> = LazyLock::new(|| {
    let mut command = program("/usr/bin/unshare", ["-m", "python3", "-ISc", ""]);
    is_root() && command.env("PATH", PATH).status().is_ok_and(|status| status.success())
});

/// Configuration of an isolated run of the doctor.
struct IsolatedDoctor<'a> {
    /// Mounts below this directory stay visible.
    keep: &'a Path,
    /// Number of a system call that fails with ENOSYS; 0 for none.
    forbidden: u32,
    /// Shell script that prepares the namespace.
    prepare: &'a str,
    /// Wrapper programs, such as one that drops privileges.
    before: Vec<&'a OsStr>,
    current: &'a Path,
    variables: Vec<(&'a str, OsString)>,
}

impl<'a> IsolatedDoctor<'a> {
    fn new(keep: &'a Path) -> IsolatedDoctor<'a> {
        IsolatedDoctor {
            keep,
            forbidden: 0,
            prepare: "true",
            before: Vec::new(),
            current: keep,
            variables: Vec::new(),
        }
    }

    /// Runs the doctor. Prints a skip and returns `None` if mount namespaces are not permitted.
    #[track_caller]
    fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Option<CommandOutput> {
        if !*PERMITTED {
            skip("a mount namespace is not permitted here, or python3 is missing");
            return None;
        }
        let mut command = program("/usr/bin/unshare", ["-m", "bash", "-ec"]);
        command.arg(format!("{}\nexec \"$@\"", self.prepare)).arg("bash");
        command
            .args(["python3", "-ISc", ISOLATE_SCRIPT])
            .arg(self.keep)
            .arg(self.forbidden.to_string());
        command
            .args(&self.before)
            .arg(PROGRAM)
            .arg("doctor")
            .args(arguments)
            .current_dir(self.current);
        command.env("PATH", PATH).envs(self.variables.iter().cloned());
        let done = run(command);
        check_printable(&done.out);
        assert_eq!(done.err, "", "{done:#?}");
        Some(done)
    }

    /// Returns the JSON report after checking it against the schema and the exit code.
    #[track_caller]
    fn json<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Option<Value> {
        let mut all: Vec<&OsStr> = vec!["--json".as_ref()];
        all.extend(arguments.iter().map(AsRef::as_ref));
        let done = self.run(&all)?;
        let report: Value =
            serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:#?}"));
        check_shape(&report);
        assert_eq!(done.code, Some(i32::from(report["problems"] != 0)), "{report:#}");
        Some(report)
    }
}

/// The schema docs/doctor.schema.json.
static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
    let text =
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/doctor.schema.json")).unwrap();
    jsonschema::validator_for(&serde_json::from_slice(&text).unwrap()).unwrap()
});

/// Returns the violations of the schema.
fn faults(report: &Value) -> Vec<String> {
    SCHEMA.iter_errors(report).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[track_caller]
pub fn check_shape(report: &Value) {
    assert_eq!(faults(report), Vec::<String>::new(), "{report:#}");
    let findings = report["findings"].as_array().unwrap();
    for (key, level) in [("problems", "problem"), ("notes", "note")] {
        assert_eq!(
            report[key],
            findings.iter().filter(|finding| finding["level"] == level).count(),
            "{report:#}"
        );
    }
}

/// Returns the findings of one check.
fn findings<'a>(report: &'a Value, check: &str) -> Vec<&'a Value> {
    report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["check"] == check)
        .collect()
}

/// Returns the only finding of a check. It must have this level, and its text or remedy must
/// contain all of `named`.
#[track_caller]
fn finding<'a>(report: &'a Value, check: &str, level: &str, named: &[&str]) -> &'a Value {
    let found = findings(report, check);
    let [finding] = found[..] else {
        panic!("the report must contain {check} exactly once: {report:#}")
    };
    assert_eq!(finding["level"], level, "{finding:#}");
    let text = format!("{} {}", finding["says"], finding["cure"]);
    for name in named {
        assert!(text.contains(name), "{name} is not in {finding:#}");
    }
    finding
}
