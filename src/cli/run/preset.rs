//! Needs of known programs besides the workspace.
//!
//! A preset lets a program write its own state in `$HOME`, and nothing that other programs run.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;

use crate::cli::terminal::display_path;

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
struct Variables {
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
        let variables = Variables {
            home: std::env::home_dir()
                .filter(|home| home.is_absolute())
                .context("cannot use the preset: $HOME is not set; set it, or use --write")?,
            claude: path("CLAUDE_CONFIG_DIR"),
            codex: path("CODEX_HOME"),
            cache: path("XDG_CACHE_HOME"),
        };
        self.needs_with(&variables)
    }

    fn needs_with(self, variables: &Variables) -> anyhow::Result<Needs> {
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

    fn variables(home: &Path) -> Variables {
        Variables { home: home.to_path_buf(), claude: None, codex: None, cache: None }
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
