//! The known formats, and the places where programs leave their sessions.
//!
//! A new format is one row of [`FORMATS`]. A program that cannot be read yet is in
//! [`UNREAD_PROGRAMS`].

use std::fmt;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::lenient::{MaybeObject, MaybeStr};
use super::probe::{Probe, ProbeBudget};
use super::transcript::TranscriptFormat;
use super::walk::Walk;
use super::{
    Atif, ClaudeCode, Cline, Codex, CopilotCli, Crush, CursorCli, Detection, Droid, Format,
    GeminiCli, Goose, InspectAi, MiniSweAgent, OpenCode, OpenHands, Otlp, Pi, QwenCode, Swarmlet,
    SweAgent, Transcripts, claude_code, codex,
};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::RelPath;
use swarmletfs_base::store::{Kind, Store};

/// Maximum number of directory entries visited to recognize a store.
const DETECTION_ENTRIES_MAX: usize = 100_000;
/// Maximum length of a program's version, in bytes.
const VERSION_MAX: usize = 40;
const DETECTION_TIME_MAX: Duration = Duration::from_secs(5);

pub struct KnownFormat {
    /// Identifier: the result of [`Format::name`], a value of `--format`, and a directory in
    /// `by/source/`.
    pub name: &'static str,
    pub program: Program,
    /// Reads its transcripts. `None` for the worker artifact store, which is recognized by its
    /// directories and their names: [`Format::detect`], which must not open a file then.
    transcripts: Option<&'static dyn TranscriptFormat>,
    /// Directory in the program's own one that holds its sessions. It is searched first. While it
    /// is empty, the store is empty, too.
    pub sessions: Option<&'static str>,
    pub session_files: SessionFiles,
    /// The newest version of the program whose sessions are tested. `None` if no session states
    /// the version, or real sessions are not tested.
    pub tested_version: Option<&'static str>,
}

/// The files of a program's directory that belong to its sessions. The others may hold its
/// settings, with secrets.
#[derive(Clone, Copy)]
pub enum SessionFiles {
    /// All files in these directories, or in the whole directory if it has none of them: then it is
    /// such a directory itself.
    Folders(&'static [&'static str]),
    /// The files with these paths.
    At(fn(&RelPath) -> bool),
    /// None: the sessions are rows of a database, which may also hold the program's keys.
    Database,
    /// All files. The format is a store, which no program purges.
    Store,
}

#[derive(Debug, Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    /// The places where it leaves sessions. A machine may have several.
    pub places: &'static [Place],
}

#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// An environment variable that names the directory, and the path below its value.
    pub variable: Option<(&'static str, &'static str)>,
    /// Paths from the home directory, unless the variable is set.
    pub home: &'static [&'static str],
}

pub static SWARMLET: KnownFormat = KnownFormat {
    name: "swarmlet",
    program: Program { name: "swarmlet", places: &[] },
    transcripts: None,
    sessions: None,
    session_files: SessionFiles::Store,
    tested_version: None,
};

pub static CLAUDE_CODE: KnownFormat = KnownFormat {
    name: "claude-code",
    program: Program {
        name: "Claude Code",
        places: &[Place {
            variable: Some(("CLAUDE_CONFIG_DIR", "")),
            // Some versions used the second one.
            home: &[".claude", ".config/claude"],
        }],
    },
    transcripts: Some(&ClaudeCode),
    sessions: Some("projects"),
    session_files: SessionFiles::Folders(&["projects"]),
    tested_version: Some(claude_code::TESTED_VERSION),
};

pub static CODEX: KnownFormat = KnownFormat {
    name: "codex",
    program: Program {
        name: "Codex CLI",
        places: &[Place { variable: Some(("CODEX_HOME", "")), home: &[".codex"] }],
    },
    transcripts: Some(&Codex),
    sessions: Some("sessions"),
    session_files: SessionFiles::Folders(&["sessions", "archived_sessions"]),
    tested_version: Some(codex::TESTED_VERSION),
};

pub static GEMINI_CLI: KnownFormat = KnownFormat {
    name: "gemini-cli",
    program: Program {
        name: "Gemini CLI",
        places: &[Place { variable: Some(("GEMINI_CLI_HOME", ".gemini")), home: &[".gemini"] }],
    },
    transcripts: Some(&GeminiCli),
    sessions: Some("tmp"),
    session_files: SessionFiles::Folders(&["tmp"]),
    tested_version: None,
};

pub static OPENHANDS: KnownFormat = KnownFormat {
    name: "openhands",
    program: Program {
        name: "OpenHands",
        places: &[
            Place { variable: None, home: &[".openhands", ".openhands-state"] },
            Place { variable: Some(("OPENHANDS_CONVERSATIONS_DIR", "")), home: &[] },
        ],
    },
    transcripts: Some(&OpenHands),
    sessions: None,
    session_files: SessionFiles::Folders(&["sessions", "conversations"]),
    tested_version: None,
};

pub static OPENCODE: KnownFormat = KnownFormat {
    name: "opencode",
    program: Program {
        name: "opencode",
        places: &[Place {
            variable: Some(("XDG_DATA_HOME", "opencode")),
            home: &[".local/share/opencode"],
        }],
    },
    transcripts: Some(&OpenCode),
    sessions: None,
    session_files: SessionFiles::Database,
    tested_version: None,
};

pub static GOOSE: KnownFormat = KnownFormat {
    name: "goose",
    program: Program {
        name: "goose",
        places: &[
            Place { variable: Some(("GOOSE_PATH_ROOT", "data/sessions")), home: &[] },
            Place {
                variable: Some(("XDG_DATA_HOME", "goose/sessions")),
                home: &[".local/share/goose/sessions"],
            },
            // Some installations.
            Place {
                variable: Some(("XDG_DATA_HOME", "Block/goose/sessions")),
                home: &[".local/share/Block/goose/sessions"],
            },
        ],
    },
    transcripts: Some(&Goose),
    sessions: None,
    session_files: SessionFiles::Database,
    tested_version: None,
};

/// The sessions of a project are in the directory `.crush` of the project.
pub static CRUSH: KnownFormat = KnownFormat {
    name: "crush",
    program: Program {
        name: "Crush",
        places: &[
            Place { variable: None, home: &[".crush"] },
            Place { variable: Some(("CRUSH_GLOBAL_DATA", ".crush")), home: &[] },
            Place {
                variable: Some(("XDG_DATA_HOME", "crush/.crush")),
                home: &[".local/share/crush/.crush"],
            },
        ],
    },
    transcripts: Some(&Crush),
    sessions: None,
    session_files: SessionFiles::Database,
    tested_version: None,
};

pub static MINI_SWE_AGENT: KnownFormat = KnownFormat {
    name: "mini-swe-agent",
    program: Program {
        name: "mini-swe-agent",
        places: &[Place {
            variable: Some(("MSWEA_GLOBAL_CONFIG_DIR", "")),
            home: &[".config/mini-swe-agent"],
        }],
    },
    transcripts: Some(&MiniSweAgent),
    sessions: None,
    session_files: SessionFiles::At(|path| MiniSweAgent.locate(path).is_some()),
    tested_version: None,
};

pub static SWE_AGENT: KnownFormat = KnownFormat {
    name: "swe-agent",
    program: Program { name: "SWE-agent", places: &[] },
    transcripts: Some(&SweAgent),
    sessions: None,
    session_files: SessionFiles::At(|path| SweAgent.locate(path).is_some()),
    tested_version: None,
};

pub static ATIF: KnownFormat = KnownFormat {
    name: "atif",
    program: Program { name: "ATIF", places: &[] },
    transcripts: Some(&Atif),
    sessions: None,
    session_files: SessionFiles::At(|path| Atif.locate(path).is_some()),
    tested_version: None,
};

pub static OTLP: KnownFormat = KnownFormat {
    name: "otlp",
    program: Program { name: "OpenTelemetry", places: &[] },
    transcripts: Some(&Otlp),
    sessions: None,
    session_files: SessionFiles::At(|path| Otlp.locate(path).is_some()),
    tested_version: None,
};

pub static INSPECT_AI: KnownFormat = KnownFormat {
    name: "inspect-ai",
    program: Program { name: "inspect_ai", places: &[] },
    transcripts: Some(&InspectAi),
    sessions: None,
    session_files: SessionFiles::At(|path| InspectAi.locate(path).is_some()),
    tested_version: None,
};

pub static COPILOT_CLI: KnownFormat = KnownFormat {
    name: "copilot-cli",
    program: Program {
        name: "GitHub Copilot CLI",
        places: &[Place { variable: Some(("COPILOT_HOME", "")), home: &[".copilot"] }],
    },
    transcripts: Some(&CopilotCli),
    sessions: Some("session-state"),
    session_files: SessionFiles::Folders(&["session-state"]),
    tested_version: None,
};

pub static CURSOR: KnownFormat = KnownFormat {
    name: "cursor",
    program: Program {
        name: "Cursor CLI",
        places: &[Place { variable: Some(("CURSOR_CONFIG_DIR", "")), home: &[".cursor"] }],
    },
    transcripts: Some(&CursorCli),
    // An empty directory of this name is more likely Claude Code's.
    sessions: None,
    session_files: SessionFiles::At(|path| {
        path.names().any(|name| name.as_bytes() == b"agent-transcripts")
    }),
    tested_version: None,
};

pub static CLINE: KnownFormat = KnownFormat {
    name: "cline",
    program: Program {
        name: "Cline",
        places: &[
            Place { variable: Some(("CLINE_DIR", "data")), home: &[".cline/data"] },
            Place {
                variable: None,
                home: &[
                    ".config/Code/User/globalStorage/saoudrizwan.claude-dev",
                    ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline",
                ],
            },
        ],
    },
    transcripts: Some(&Cline),
    sessions: None,
    session_files: SessionFiles::Folders(&["sessions", "tasks"]),
    tested_version: None,
};

pub static PI: KnownFormat = KnownFormat {
    name: "pi",
    program: Program {
        name: "pi",
        places: &[Place {
            variable: Some(("PI_CODING_AGENT_DIR", "sessions")),
            home: &[".pi/agent/sessions", ".omp/agent/sessions", ".openclaw/agents"],
        }],
    },
    transcripts: Some(&Pi),
    sessions: None,
    session_files: SessionFiles::At(|path| Pi.locate(path).is_some()),
    tested_version: None,
};

pub static DROID: KnownFormat = KnownFormat {
    name: "droid",
    program: Program { name: "Droid", places: &[Place { variable: None, home: &[".factory"] }] },
    transcripts: Some(&Droid),
    sessions: None,
    session_files: SessionFiles::Folders(&["sessions"]),
    tested_version: None,
};

pub static QWEN_CODE: KnownFormat = KnownFormat {
    name: "qwen-code",
    program: Program { name: "Qwen Code", places: &[Place { variable: None, home: &[".qwen"] }] },
    transcripts: Some(&QwenCode),
    sessions: None,
    session_files: SessionFiles::Folders(&["projects"]),
    tested_version: None,
};

/// All formats in the order of recognition: the first that recognizes a file wins, so a format
/// comes before those that would also accept its files.
pub static FORMATS: [&KnownFormat; 19] = [
    &SWARMLET,
    &ATIF,
    &INSPECT_AI,
    &MINI_SWE_AGENT,
    &SWE_AGENT,
    &OTLP,
    &OPENCODE,
    &GOOSE,
    &CRUSH,
    &GEMINI_CLI,
    &OPENHANDS,
    &COPILOT_CLI,
    &CLINE,
    &PI,
    &DROID,
    &QWEN_CODE,
    &CURSOR,
    &CODEX,
    &CLAUDE_CODE,
];

pub static UNREAD_PROGRAMS: [Program; 1] = [Program {
    name: "Kimi Code",
    places: &[Place { variable: None, home: &[".kimi-code/sessions"] }],
}];

impl fmt::Debug for KnownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownFormat").field(&self.name).finish()
    }
}

impl KnownFormat {
    pub fn by_name(name: &str) -> Option<&'static KnownFormat> {
        FORMATS.into_iter().find(|format| format.name == name)
    }

    pub fn create(&self) -> Box<dyn Format> {
        match self.transcripts {
            Some(format) => Box::new(Transcripts::new(format)),
            None => Box::new(Swarmlet::default()),
        }
    }

    /// Creates the format for a store of which only the file at `path` is read. Returns `None` if a
    /// single file is no worker of this format.
    pub fn create_for_file(&self, path: RelPath) -> Option<Box<dyn Format>> {
        Some(Box::new(Transcripts::new(self.transcripts?).only(path)))
    }

    /// Returns true if each worker is a file that is recognized by its content.
    pub fn has_transcripts(&self) -> bool {
        self.transcripts.is_some()
    }

    /// Returns true if a file is a transcript of this format, by its name and then its content.
    pub fn recognizes(&self, probe: &Probe<'_>) -> bool {
        self.transcripts.is_some_and(|format| format.recognizes(probe))
    }

    /// Returns the version of the program that the beginning of a transcript states, if it is newer
    /// than the tested one.
    pub fn newer_version(&self, head: &[u8]) -> Option<String> {
        let tested = self.tested_version?;
        let version = head.split(|byte| *byte == b'\n').find_map(stated_version)?;
        (numbers(&version) > numbers(tested)).then_some(version)
    }

    /// Returns true if the directory of sessions exists and is empty.
    fn is_prepared(&self, store: &dyn Store) -> bool {
        let folder = self.sessions.map(RelPath::constant);
        folder.is_some_and(|folder| store.list(&folder).is_ok_and(|entries| entries.is_empty()))
    }
}

/// A line that may state the version of its program: Claude Code does so in the line, Codex in the
/// facts of the session.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct VersionedLine<'a> {
    version: MaybeStr<'a>,
    payload: MaybeObject<VersionedPayload<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VersionedPayload<'a> {
    #[serde(borrow)]
    cli_version: MaybeStr<'a>,
}

/// Returns the version in a line. A text that is no version, which could be of any length, counts
/// as absent.
fn stated_version(line: &[u8]) -> Option<String> {
    let line: VersionedLine<'_> = serde_json::from_slice(line).ok()?;
    let of_session = line.payload.0.and_then(|payload| payload.cli_version.non_empty());
    let version = line.version.non_empty().or(of_session)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    (version.len() <= VERSION_MAX && version.bytes().all(is_plain)).then_some(version)
}

/// Returns the numbers of a version up to a part that is none, such as `alpha`.
fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

#[derive(Debug)]
pub enum Detected {
    /// The store has this format, or will have it once it is filled.
    Format(&'static KnownFormat),
    /// The directory is a single worker, not a store.
    OneWorker,
    Unknown {
        /// True if no limit ended the search.
        searched_all: bool,
    },
}

/// Detects the format of a store: by its shape, then by the content of its files. Opens each file
/// at most once for all formats, and a limited number of them.
///
/// # Errors
///
/// Fails if the store cannot be listed.
pub fn detect(store: &dyn Store) -> Result<Detected> {
    for format in FORMATS.into_iter().filter(|format| !format.has_transcripts()) {
        match format.create().detect(store)? {
            Detection::Workers | Detection::Empty => return Ok(Detected::Format(format)),
            Detection::OneWorker => return Ok(Detected::OneWorker),
            Detection::Other => {}
        }
    }
    let (budget, end) = (ProbeBudget::default(), Instant::now() + DETECTION_TIME_MAX);
    let mut walk = Walk::new(store, RelPath::root())
        .with_limits(DETECTION_ENTRIES_MAX, Deadline::new(&end))
        .preferring(FORMATS.into_iter().filter_map(|format| format.sessions));
    // The files of a directory that cannot be listed for a moment cannot tell the format.
    for entry in walk.by_ref().flatten().filter(|entry| entry.kind == Kind::File) {
        if let Some(format) = recognize(&Probe::new(store, &entry.path, &budget)) {
            return Ok(Detected::Format(format));
        }
        if budget.is_spent() {
            break;
        }
    }
    let prepared = FORMATS.into_iter().find(|format| format.is_prepared(store));
    Ok(match prepared {
        Some(format) => Detected::Format(format),
        None => Detected::Unknown { searched_all: walk.is_complete() && !budget.is_spent() },
    })
}

pub fn recognize(probe: &Probe<'_>) -> Option<&'static KnownFormat> {
    FORMATS.into_iter().find(|format| format.recognizes(probe))
}

/// Describes the contents that make a directory a store of one of `formats`, for error messages.
pub fn expected_contents(formats: &[&KnownFormat]) -> String {
    let (shapes, contents): (Vec<&KnownFormat>, Vec<&KnownFormat>) =
        formats.iter().partition(|format| !format.has_transcripts());
    let shapes = shapes.iter().map(|format| {
        let worker = format.create().worker_description();
        format!("folders with {worker}, there or in its workers/")
    });
    let programs = contents.iter().map(|format| format.program.name).collect::<Vec<_>>();
    let transcripts =
        (!programs.is_empty()).then(|| format!("transcripts of {}", alternatives(&programs)));
    shapes.chain(transcripts).collect::<Vec<_>>().join(", or ")
}

/// Joins names as alternatives: `a, b or c`.
pub fn alternatives(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [names @ .., last] => format!("{} or {last}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_names_the_format_that_it_creates() {
        for format in FORMATS {
            assert_eq!(format.create().name(), format.name);
            assert_eq!(
                KnownFormat::by_name(format.name).map(|found| found.name),
                Some(format.name)
            );
            if let Some(created) = format.create_for_file(RelPath::constant("a")) {
                assert_eq!(created.name(), format.name);
            }
        }
        assert!(KnownFormat::by_name("other").is_none());
    }

    #[test]
    fn only_a_newer_version_than_the_tested_one_is_returned() {
        let found = |format: &KnownFormat, version: &str| {
            let claude_code =
                format!("{{\"type\":\"summary\"}}\n{{\"version\":\"{version}\"}}\n{{");
            let codex = format!("{{\"payload\":{{\"cli_version\":\"{version}\"}}}}\n");
            let head = if format.name == CODEX.name { codex } else { claude_code };
            format.newer_version(head.as_bytes())
        };
        for format in [&CLAUDE_CODE, &CODEX] {
            let tested = format.tested_version.unwrap();
            for newer in [&format!("{tested}.1"), "99", "99.0.0-alpha.1", "9999.0.1+x"] {
                assert_eq!(found(format, newer).as_deref(), Some(newer));
            }
            for other in [tested, "0.1", "", "alpha", "99\\u001b[31m", &"9".repeat(50)] {
                assert_eq!(found(format, other), None, "{other}");
            }
        }
        assert_eq!(found(&GEMINI_CLI, "99"), None);
        assert_eq!(CODEX.newer_version(b"\xff\n[1]\n{\"payload\":1}"), None);
    }

    #[test]
    fn expected_contents_name_all_formats() {
        assert_eq!(
            expected_contents(&FORMATS),
            "folders with a metadata.json or a tool_calls/, there or in its workers/, or \
             transcripts of ATIF, inspect_ai, mini-swe-agent, SWE-agent, OpenTelemetry, opencode, goose, Crush, \
             Gemini CLI, OpenHands, GitHub Copilot CLI, Cline, pi, Droid, Qwen Code, Cursor CLI, \
             Codex CLI or Claude Code"
        );
        assert_eq!(alternatives(&["a", "b", "c"]), "a, b or c");
    }
}
