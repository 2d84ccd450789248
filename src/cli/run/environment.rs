//! The environment variables of a command behind walls.
//!
//! A variable often holds a token, so a command receives only variables that a list names. A list
//! of variables to leave out could never be complete.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use globset::{Glob, GlobSet, GlobSetBuilder};

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

#[cfg(test)]
mod tests {
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
}
