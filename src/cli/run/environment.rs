//! The environment variables of an isolated command, and the needs of known programs besides the
//! workspace.
//!
//! A variable often holds a token, so a command receives only variables that a list names. A list
//! of variables to leave out could never be complete.
//!
//! A preset lets a program write its own state in `$HOME`, and nothing that other programs run.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context;
use clap::ValueEnum;
use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::cli::terminal::display_path;

pub(super) type Variables = BTreeMap<OsString, OsString>;

/// Patterns of the variables that every command receives: of the user, of the terminal and the
/// language, of the network, of the places of programs and libraries, and of git and builds. None
/// of them holds a token, except for the address of a proxy, without which there is no network.
const BASE: [&str; 5] = [
    "PATH HOME USER LOGNAME SHELL TMPDIR XDG_*_HOME XDG_*_DIRS EDITOR VISUAL PAGER",
    "TERM TERMINFO TERMINFO_DIRS COLORTERM COLUMNS LINES NO_COLOR FORCE_COLOR CLICOLOR \
     CLICOLOR_FORCE LANG LANGUAGE LC_* TZ TZDIR",
    "http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY \
     ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE \
     NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO",
    "LD_LIBRARY_PATH PKG_CONFIG_PATH MANPATH CC CXX CFLAGS CXXFLAGS LDFLAGS CARGO_HOME \
     CARGO_TARGET_DIR RUSTUP_HOME RUSTUP_TOOLCHAIN RUSTFLAGS RUST_BACKTRACE RUST_LOG GOROOT GOPATH \
     GOCACHE GOMODCACHE GOFLAGS JAVA_HOME NODE_PATH NODE_OPTIONS NVM_DIR VOLTA_HOME PNPM_HOME \
     PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE VIRTUAL_ENV CONDA_PREFIX \
     CONDA_DEFAULT_ENV PYENV_ROOT GEM_HOME GEM_PATH",
    "GIT_AUTHOR_* GIT_COMMITTER_* GIT_CEILING_DIRECTORIES GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM \
     GIT_CONFIG_NOSYSTEM CI SOURCE_DATE_EPOCH SWARMLETFS_LOG",
];

/// Patterns of the variables of root that a command of another user receives. The others name
/// places of root.
const OF_ROOT: [&str; 1] = ["PATH TERM COLORTERM NO_COLOR LANG LANGUAGE LC_* TZ SWARMLETFS_LOG"];

#[derive(Debug, Clone)]
pub(crate) enum EnvOption {
    /// Passes on each variable whose name matches.
    Pass(Glob),
    Set(OsString, OsString),
}

impl EnvOption {
    /// Parses `NAME`, a pattern of names, or `NAME=VALUE`.
    pub(super) fn parse(text: OsString) -> Result<EnvOption, String> {
        let mut parts = text.as_bytes().splitn(2, |byte| *byte == b'=').map(OsStr::from_bytes);
        let name = parts.next().filter(|name| !name.is_empty()).ok_or("the name is missing")?;
        if let Some(value) = parts.next() {
            return Ok(EnvOption::Set(name.into(), value.into()));
        }
        let pattern =
            name.to_str().ok_or("the name is not UTF-8; give it a value, as NAME=VALUE")?;
        Glob::new(pattern).map(EnvOption::Pass).map_err(|error| error.kind().to_string())
    }
}

#[derive(Debug)]
pub(super) struct EnvironmentRules {
    passed: GlobSet,
    set: Variables,
    /// Patterns of the user that match no variable.
    pub(super) unmatched: Vec<String>,
}

impl EnvironmentRules {
    /// Returns the rules for a program that needs the variables of `preset`, with the options of
    /// the user.
    ///
    /// # Errors
    ///
    /// A pattern is too large.
    pub(super) fn new(preset: &str, options: &[EnvOption]) -> anyhow::Result<EnvironmentRules> {
        EnvironmentRules::with(&BASE, preset, options)
    }

    /// Returns the rules for a runner that root starts for another user.
    ///
    /// # Errors
    ///
    /// A pattern is too large.
    pub(super) fn of_other_user(options: &[EnvOption]) -> anyhow::Result<EnvironmentRules> {
        EnvironmentRules::with(&OF_ROOT, "", options)
    }

    fn with(
        base: &[&str],
        preset: &str,
        options: &[EnvOption],
    ) -> anyhow::Result<EnvironmentRules> {
        let context = || "cannot choose the variables of the command";
        let mut passed = GlobSetBuilder::new();
        for pattern in base.iter().chain([&preset]).flat_map(|words| words.split_whitespace()) {
            passed.add(Glob::new(pattern).with_context(context)?);
        }
        let mut rules =
            EnvironmentRules { passed: GlobSet::empty(), set: Variables::new(), unmatched: vec![] };
        for option in options {
            match option {
                EnvOption::Set(name, value) => drop(rules.set.insert(name.clone(), value.clone())),
                EnvOption::Pass(glob) => {
                    let matcher = glob.compile_matcher();
                    if !std::env::vars_os().any(|(name, _)| matcher.is_match(name)) {
                        rules.unmatched.push(glob.glob().to_owned());
                    }
                    passed.add(glob.clone());
                }
            }
        }
        rules.passed = passed.build().with_context(context)?;
        Ok(rules)
    }

    pub(super) fn passes(&self, name: &OsStr) -> bool {
        self.passed.is_match(name)
    }

    /// Returns the variables of `all` that are passed on, and those that the user sets.
    pub(super) fn apply(self, all: impl Iterator<Item = (OsString, OsString)>) -> Variables {
        let mut variables: Variables = all.filter(|(name, _)| self.passes(name)).collect();
        variables.extend(self.set);
        variables
    }
}

/// The file of Claude Code's settings, in its folder or in `$HOME`.
const CLAUDE_FILE: &str = ".claude.json";

/// A program with known needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Preset {
    /// Claude Code: $CLAUDE_CONFIG_DIR or ~/.claude
    Claude,
    /// Codex: $CODEX_HOME or ~/.codex
    Codex,
    /// Gemini CLI: ~/.gemini
    Gemini,
    /// Nothing in $HOME
    None,
}

/// Folders and variables that a program needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// Folders that it must write; they exist.
    pub(super) writable: Vec<PathBuf>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// True if it makes sandboxes of its own.
    pub(super) nested: bool,
}

#[derive(Debug)]
struct PresetVariables {
    home: PathBuf,
    /// `$CLAUDE_CONFIG_DIR`
    claude: Option<PathBuf>,
    /// `$CODEX_HOME`
    codex: Option<PathBuf>,
    /// `$XDG_CACHE_HOME`
    cache: Option<PathBuf>,
}

impl Preset {
    /// Returns patterns of the variables that the program reads, its tokens among them.
    pub(super) fn variables(self) -> &'static str {
        match self {
            Preset::Claude => {
                "ANTHROPIC_* CLAUDE_* API_TIMEOUT_MS DISABLE_AUTOUPDATER DISABLE_TELEMETRY \
                 DISABLE_ERROR_REPORTING MAX_THINKING_TOKENS MCP_TIMEOUT ENABLE_TOOL_SEARCH IS_SANDBOX"
            }
            Preset::Codex => "OPENAI_* CODEX_*",
            Preset::Gemini => {
                "GEMINI_* GOOGLE_API_KEY GOOGLE_CLOUD_PROJECT GOOGLE_CLOUD_LOCATION \
                 GOOGLE_GEMINI_* GOOGLE_GENAI_*"
            }
            Preset::None => "",
        }
    }

    /// Returns the needs of the program. Its folder is made if it is missing.
    ///
    /// # Errors
    ///
    /// `$HOME` is unknown, or its folder cannot be made.
    pub(super) fn needs(self) -> anyhow::Result<Needs> {
        if self == Preset::None {
            return Ok(Needs::default());
        }
        let path = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let variables = PresetVariables {
            home: std::env::home_dir()
                .filter(|home| home.is_absolute())
                .context("cannot use the preset: $HOME is not set; set it, or use --write")?,
            claude: path("CLAUDE_CONFIG_DIR"),
            codex: path("CODEX_HOME"),
            cache: path("XDG_CACHE_HOME"),
        };
        self.needs_with(&variables)
    }

    fn needs_with(self, variables: &PresetVariables) -> anyhow::Result<Needs> {
        let home = &variables.home;
        let cache = variables.cache.clone().unwrap_or_else(|| home.join(".cache"));
        let (folder, caches): (PathBuf, &[&str]) = match self {
            Preset::Claude => {
                let folder = variables.claude.clone().unwrap_or_else(|| home.join(".claude"));
                (folder, &["claude", "claude-cli-nodejs"])
            }
            Preset::Codex => (variables.codex.clone().unwrap_or_else(|| home.join(".codex")), &[]),
            Preset::Gemini => (home.join(".gemini"), &[]),
            Preset::None => return Ok(Needs::default()),
        };
        let shown = display_path(&folder);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.with_context(|| format!("cannot make {shown}, which the preset needs"))?;
        let mut needs = Needs {
            nested: matches!(self, Preset::Claude | Preset::Codex),
            writable: vec![folder.clone()],
            ..Needs::default()
        };
        needs
            .writable
            .extend(caches.iter().map(|name| cache.join(name)).filter(|dir| dir.is_dir()));
        if self == Preset::Claude && variables.claude.is_none() {
            // The program replaces ~/.claude.json by a rename, which needs all of $HOME. With this
            // variable, the file is in the folder.
            copy_newer(&home.join(CLAUDE_FILE), &folder).with_context(|| {
                format!("cannot copy ~/{CLAUDE_FILE} to {shown}, where the preset needs it")
            })?;
            needs.environment.push(("CLAUDE_CONFIG_DIR".into(), folder.into()));
        }
        Ok(needs)
    }
}

/// Copies the file `from` into `folder`, unless that has a newer one. A missing file is none.
fn copy_newer(from: &Path, folder: &Path) -> io::Result<()> {
    let source = match fs::metadata(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        source => source?,
    };
    let to = folder.join(CLAUDE_FILE);
    let time = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec());
    if fs::metadata(&to).is_ok_and(|existing| time(&existing) >= time(&source)) {
        return Ok(());
    }
    // Others may start at the same time. The file holds tokens, so only its owner may read it.
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    io::copy(&mut fs::File::open(from)?, &mut temporary)?;
    temporary.persist(to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(rules: EnvironmentRules, all: &[&str]) -> Vec<String> {
        let all = all.iter().map(|name| (OsString::from(name), OsString::from("value")));
        let text = |(name, value): (OsString, OsString)| {
            format!("{}={}", name.to_string_lossy(), value.to_string_lossy())
        };
        rules.apply(all).into_iter().map(text).collect()
    }

    fn option(text: &str) -> EnvOption {
        EnvOption::parse(text.into()).unwrap()
    }

    #[test]
    fn tokens_are_passed_on_for_their_program_or_by_an_option_only() {
        let all = ["AWS_KEY", "GITHUB_TOKEN", "LC_TIME", "OPENAI_API_KEY", "PATH", "SSH_AUTH_SOCK"];
        let rules = |preset, options: &[EnvOption]| EnvironmentRules::new(preset, options).unwrap();
        assert_eq!(names(rules("", &[]), &all), ["LC_TIME=value", "PATH=value"]);
        let preset = names(rules("OPENAI_*", &[]), &all);
        assert_eq!(preset, ["LC_TIME=value", "OPENAI_API_KEY=value", "PATH=value"]);
        let options = ["AWS_*", "GITHUB_TOKEN", "PATH=/bin", "NEW=", "NEWER=a=b"].map(option);
        let named = names(rules("", &options), &all);
        let expected = [
            "AWS_KEY=value",
            "GITHUB_TOKEN=value",
            "LC_TIME=value",
            "NEW=",
            "NEWER=a=b",
            "PATH=/bin",
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn variables_that_name_places_of_root_are_not_for_another_user() {
        let rules = EnvironmentRules::of_other_user(&[option("AWS_*")]).unwrap();
        let all = ["AWS_KEY", "CARGO_HOME", "HOME", "LANG", "TMPDIR", "USER", "XDG_CACHE_HOME"];
        assert_eq!(names(rules, &all), ["AWS_KEY=value", "LANG=value"]);
    }

    #[test]
    fn options_that_name_nothing_are_refused_or_reported() {
        for text in ["", "=value", "[", "{a"] {
            assert!(EnvOption::parse(text.into()).is_err(), "{text}");
        }
        let options = ["NO_SUCH_VARIABLE_*", "*"].map(option);
        let rules = EnvironmentRules::new("", &options).unwrap();
        assert_eq!(rules.unmatched, ["NO_SUCH_VARIABLE_*"]);
    }

    fn variables(home: &Path) -> PresetVariables {
        PresetVariables { home: home.to_path_buf(), claude: None, codex: None, cache: None }
    }

    #[test]
    fn preset_of_claude_keeps_its_settings_in_its_folder() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".claude");
        fs::write(home.path().join(CLAUDE_FILE), "{\"first\": 1}").unwrap();
        fs::create_dir_all(home.path().join(".cache/claude-cli-nodejs")).unwrap();
        let needs = Preset::Claude.needs_with(&variables(home.path())).unwrap();
        let cache = home.path().join(".cache/claude-cli-nodejs");
        assert_eq!(needs.writable, [folder.clone(), cache]);
        assert_eq!(needs.environment, [("CLAUDE_CONFIG_DIR".into(), folder.clone().into())]);
        assert!(needs.nested);
        let copy = folder.join(CLAUDE_FILE);
        assert_eq!(fs::read_to_string(&copy).unwrap(), "{\"first\": 1}");
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o077, 0);

        // The program's own newer file stays.
        fs::write(&copy, "{\"second\": 2}").unwrap();
        Preset::Claude.needs_with(&variables(home.path())).unwrap();
        assert_eq!(fs::read_to_string(&copy).unwrap(), "{\"second\": 2}");
    }

    #[test]
    fn variables_of_the_programs_name_their_folders() {
        let home = tempfile::tempdir().unwrap();
        let (claude, codex) = (home.path().join("c"), home.path().join("x"));
        let mut variables = variables(home.path());
        variables.claude = Some(claude.clone());
        variables.codex = Some(codex.clone());
        fs::write(home.path().join(CLAUDE_FILE), "{}").unwrap();
        let needs = Preset::Claude.needs_with(&variables).unwrap();
        assert_eq!((needs.writable, needs.environment), (vec![claude.clone()], Vec::new()));
        assert!(!claude.join(CLAUDE_FILE).exists());
        assert_eq!(Preset::Codex.needs_with(&variables).unwrap().writable, [codex]);
        let gemini = Preset::Gemini.needs_with(&variables).unwrap();
        assert_eq!(gemini.writable, [home.path().join(".gemini")]);
        assert!(!gemini.nested);
        assert_eq!(Preset::None.needs_with(&variables).unwrap(), Needs::default());
    }
}
