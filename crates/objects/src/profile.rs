//! The profile of the user for S3, as the AWS CLI reads it from `~/.aws`.
//!
//! A profile is a section of two files. Values of `credentials` precede values of `config`, and the
//! environment precedes both. A profile has keys, or a command that prints keys which expire. Other
//! programs renew the keys in the files, so they are read again from time to time, and after a
//! refusal. A sign-in
//! or a role needs further services; the error names the command of the AWS CLI that uses them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use configparser::ini::{Ini, IniDefault};
use jiff::Timestamp;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;
use swarmletfs_base::name::printable;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::traffic::Traffic;

const DEFAULT: &str = "default";
/// Time after which keys of a file are read again.
const FILE_AGE_MAX: Duration = Duration::from_secs(30);
/// Time before the end of keys at which a command is run for new ones.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// Shortest time for which keys are not renewed.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of a message of a command that failed, in bytes.
const MESSAGE_MAX: usize = 300;
/// Settings of a sign-in or a role, which need requests to other services.
const FOREIGN: [(&str, &str); 6] = [
    ("role_arn", "another role"),
    ("credential_source", "another role"),
    ("sso_session", "a sign-in (SSO)"),
    ("sso_start_url", "a sign-in (SSO)"),
    ("sso_account_id", "a sign-in (SSO)"),
    ("login_session", "a sign-in"),
];

/// A profile that cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct ProfileError {
    pub(crate) reason: String,
    /// The remedy, as an imperative.
    pub(crate) cure: String,
}

impl ProfileError {
    fn new(reason: impl Into<String>, cure: impl Into<String>) -> ProfileError {
        ProfileError { reason: reason.into(), cure: cure.into() }
    }
}

impl From<ProfileError> for object_store::Error {
    fn from(error: ProfileError) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: Box::new(error) }
    }
}

/// The files of the profiles, and the name of one.
#[derive(Debug, Clone)]
pub(crate) struct ProfileFiles {
    config: PathBuf,
    credentials: PathBuf,
    name: String,
    /// True if the user chose the profile. The default one need not exist.
    is_chosen: bool,
}

/// The source of the credentials of a profile.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProfileCredentials {
    Keys(AwsCredential),
    /// A command that prints keys as JSON.
    Command(String),
    /// Keys for the token in a file, of a role.
    WebIdentity {
        token_file: String,
        role: String,
        session: Option<String>,
    },
    /// A sign-in or a role, in words.
    Foreign(&'static str),
}

/// Settings of a profile that swarmletfs uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) credentials: Option<ProfileCredentials>,
}

impl ProfileFiles {
    /// Finds the files and the name in the environment.
    pub(crate) fn find() -> Option<ProfileFiles> {
        ProfileFiles::from(|variable| env::var_os(variable).filter(|value| !value.is_empty()))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Option<ProfileFiles> {
        let folder = || Some(PathBuf::from(variable("HOME")?).join(".aws"));
        let path = |name: &str, file: &str| {
            variable(name).map(PathBuf::from).or_else(|| Some(folder()?.join(file)))
        };
        let chosen = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        Some(ProfileFiles {
            config: path("AWS_CONFIG_FILE", "config")?,
            credentials: path("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
            is_chosen: chosen.is_some(),
            name: chosen.map_or(DEFAULT.into(), |name| name.to_string_lossy().into_owned()),
        })
    }

    /// Reads the profile.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the chosen profile is missing.
    pub(crate) fn read(&self) -> Result<Profile, ProfileError> {
        let (config, credentials) = (read(&self.config)?, read(&self.credentials)?);
        let sections = [
            find_section(&credentials, |section| *section == self.name),
            find_section(&config, |section| profile_name(section) == Some(&*self.name)).or_else(
                || find_section(&config, |section| self.name == DEFAULT && *section == DEFAULT),
            ),
        ];
        if self.is_chosen && sections.iter().all(Option::is_none) {
            let (name, config) = (&self.name, self.config.display());
            let (reason, cure) = (
                format!("there is no profile {name} in {config}"),
                "check $AWS_PROFILE, or unset it".to_owned(),
            );
            return Err(ProfileError::new(reason, cure));
        }
        let get = |key: &str| sections.iter().flatten().find_map(|section| value(section, key));
        let services = get("services").and_then(|services| {
            let wanted = format!("services {services}");
            find_section(&config, |section| *section == wanted)
        });
        // Settings of one service are a text in the same format, further in.
        let of_service = services.and_then(|services| {
            let nested = parse(value(services, "s3")?).ok()?;
            value(nested.get_map_ref().get(DEFAULT)?, "endpoint_url").map(str::to_owned)
        });
        Ok(Profile {
            region: get("region").map(str::to_owned),
            endpoint: of_service.or_else(|| get("endpoint_url").map(str::to_owned)),
            credentials: credentials_of(&sections, get),
        })
    }

    /// Returns the error of a profile whose credentials come from `origin`.
    pub(crate) fn foreign(&self, origin: &str) -> ProfileError {
        let name = &self.name;
        ProfileError::new(
            format!("the profile {name} gets its credentials by {origin}, which is not built in"),
            format!(
                "run: eval \"$(aws configure export-credentials --profile {name} --format env)\""
            ),
        )
    }
}

type ProfileValues = std::collections::HashMap<String, Option<String>>;

/// Returns the value of a key that is not empty.
fn value<'a>(section: &'a ProfileValues, key: &str) -> Option<&'a str> {
    section.get(key)?.as_deref().filter(|value| !value.is_empty())
}

fn find_section(file: &Ini, is_wanted: impl Fn(&&str) -> bool) -> Option<&ProfileValues> {
    let mut sections = file.get_map_ref().iter();
    sections.find(|(name, _)| is_wanted(&name.as_str())).map(|(_, section)| section)
}

/// Returns the name of the profile of a section in `config`, such as `profile "a b"`.
fn profile_name(section: &str) -> Option<&str> {
    let (kind, name) = section.split_once(char::is_whitespace)?;
    let name = name.trim();
    let unquoted = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    (kind == "profile").then_some(unquoted.unwrap_or(name))
}

/// Returns the source of the credentials: a role or keys of `credentials`, then a command, then
/// keys of `config`.
fn credentials_of<'a>(
    sections: &[Option<&'a ProfileValues>],
    get: impl Fn(&str) -> Option<&'a str>,
) -> Option<ProfileCredentials> {
    let owned = |key: &str| get(key).map(str::to_owned);
    if let (Some(token_file), Some(role)) = (owned("web_identity_token_file"), owned("role_arn")) {
        let session = owned("role_session_name");
        return Some(ProfileCredentials::WebIdentity { token_file, role, session });
    }
    let mut foreign = FOREIGN.iter().filter(|(key, _)| get(key).is_some());
    if get("role_arn").is_none()
        && let Some(command) = owned("credential_process")
    {
        return Some(ProfileCredentials::Command(command));
    }
    if let Some((_, origin)) = foreign.next() {
        return Some(ProfileCredentials::Foreign(origin));
    }
    // The keys and the token belong together, so all come from one file.
    sections.iter().flatten().find_map(|section| {
        Some(ProfileCredentials::Keys(AwsCredential {
            key_id: value(section, "aws_access_key_id")?.to_owned(),
            secret_key: value(section, "aws_secret_access_key")?.to_owned(),
            token: value(section, "aws_session_token").map(str::to_owned),
        }))
    })
}

/// Reads a file of profiles; a missing one is empty.
fn read(path: &Path) -> Result<Ini, ProfileError> {
    let shown = || printable(path.as_os_str().as_encoded_bytes());
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => {
            let reason = format!("the profiles in {} cannot be read: {error}", shown());
            return Err(ProfileError::new(reason, "check that it is a file that you may read"));
        }
    };
    parse(&text).map_err(|error| {
        let reason = format!("the profiles in {} cannot be parsed: {error}", shown());
        ProfileError::new(reason, "correct the file")
    })
}

fn parse(text: &str) -> Result<Ini, String> {
    let mut format = IniDefault::default();
    format.case_sensitive = true;
    format.multiline = true;
    format.comment_symbols = vec!['#', ';'];
    format.inline_comment_symbols = Some(Vec::new());
    let mut file = Ini::new_from_defaults(format);
    file.read(text.to_owned())?;
    Ok(file)
}

/// Provides the keys of a profile, and renews them.
#[derive(Debug)]
pub(crate) struct ProfileKeys {
    files: ProfileFiles,
    /// Requests with the keys, some of which may have been refused.
    traffic: Arc<Traffic>,
    current: Mutex<Option<CurrentKeys>>,
}

#[derive(Debug)]
struct CurrentKeys {
    keys: Arc<AwsCredential>,
    renewed: Instant,
    /// Time from which on they are asked for again; `None` if they never change.
    due: Option<Instant>,
}

impl ProfileKeys {
    pub(crate) fn new(files: ProfileFiles, traffic: Arc<Traffic>) -> ProfileKeys {
        ProfileKeys { files, traffic, current: Mutex::default() }
    }

    async fn renew(&self) -> Result<CurrentKeys, ProfileError> {
        let now = Instant::now();
        match self.files.read()?.credentials {
            Some(ProfileCredentials::Keys(keys)) => Ok(CurrentKeys {
                keys: Arc::new(keys),
                renewed: now,
                due: Some(now + FILE_AGE_MAX),
            }),
            Some(ProfileCredentials::Command(command)) => {
                let printed = run(&command).await?;
                let due = printed.expiration.map(|end| {
                    let left = end.duration_since(Timestamp::now());
                    let left = Duration::try_from(left).unwrap_or_default();
                    now + left.saturating_sub(RENEW_BEFORE).max(RENEWAL_PAUSE)
                });
                Ok(CurrentKeys { keys: Arc::new(printed.into()), renewed: now, due })
            }
            Some(ProfileCredentials::Foreign(origin)) => Err(self.files.foreign(origin)),
            Some(ProfileCredentials::WebIdentity { .. }) | None => Err(ProfileError::new(
                format!("the profile {} has no keys any more", self.files.name),
                "check it, and start again",
            )),
        }
    }
}

#[async_trait]
impl CredentialProvider for ProfileKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut current = self.current.lock().await;
        let now = Instant::now();
        if let Some(current) = &*current {
            let is_new = now < current.renewed + RENEWAL_PAUSE;
            let is_due =
                || self.traffic.take_refused() || current.due.is_some_and(|due| now >= due);
            if is_new || !is_due() {
                return Ok(current.keys.clone());
            }
        }
        let renewed = self.renew().await?;
        let keys = renewed.keys.clone();
        *current = Some(renewed);
        Ok(keys)
    }
}

/// The output of a command that provides keys.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedKeys {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<Timestamp>,
}

impl From<PrintedKeys> for AwsCredential {
    fn from(printed: PrintedKeys) -> AwsCredential {
        AwsCredential {
            key_id: printed.access_key_id,
            secret_key: printed.secret_access_key,
            token: printed.session_token,
        }
    }
}

/// Runs the command of a profile. It ends with the request that needs it.
async fn run(command: &str) -> Result<PrintedKeys, ProfileError> {
    let failed = |reason: String| {
        ProfileError::new(
            format!("the credential_process of the profile {reason}"),
            "run it in a terminal, and correct the profile",
        )
    };
    let words = shlex::split(command).unwrap_or_default();
    let Some((program, arguments)) = words.split_first() else {
        return Err(failed("is no command".into()));
    };
    let ended = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if !ended.status.success() {
        let said = ended.stderr.trim_ascii();
        let said = printable(said.get(..MESSAGE_MAX).unwrap_or(said));
        return Err(failed(format!("failed ({}): {said}", ended.status)));
    }
    // The error of the parser may quote a key.
    let printed: PrintedKeys = serde_json::from_slice(&ended.stdout)
        .map_err(|_| failed("prints no keys as JSON".into()))?;
    match printed.version {
        1 => Ok(printed),
        other => Err(failed(format!("prints version {other}, not 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the profile `name` from the texts of both files.
    fn read(name: &str, config: &str, credentials: &str) -> Result<Profile, ProfileError> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(".aws")).unwrap();
        for (file, text) in [("config", config), ("credentials", credentials)] {
            fs::write(folder.path().join(".aws").join(file), text).unwrap();
        }
        let variable = |variable: &str| match variable {
            "HOME" => Some(folder.path().as_os_str().to_owned()),
            "AWS_PROFILE" if !name.is_empty() => Some(name.into()),
            _ => None,
        };
        ProfileFiles::from(variable).unwrap().read()
    }

    fn keys(id: &str, token: Option<&str>) -> Option<ProfileCredentials> {
        Some(ProfileCredentials::Keys(AwsCredential {
            key_id: id.into(),
            secret_key: "a+b/c=d;e#f".into(),
            token: token.map(str::to_owned),
        }))
    }

    #[test]
    fn values_of_credentials_precede_values_of_config() {
        let config = "# of a user\n[default]\nregion = eu-west-1\naws_access_key_id = old\n\
                      aws_secret_access_key = x\n[profile dev]\nregion=us-east-2\n\
                      endpoint_url = http://127.0.0.1:9000\n";
        let credentials = "[default]\naws_access_key_id=A\naws_secret_access_key=a+b/c=d;e#f\n\
                           [dev]\naws_access_key_id = B\naws_secret_access_key = a+b/c=d;e#f\n\
                           aws_session_token = T==\n";
        let default = read("", config, credentials).unwrap();
        assert_eq!((default.region, default.endpoint), (Some("eu-west-1".into()), None));
        assert_eq!(default.credentials, keys("A", None));
        let dev = read("dev", config, credentials).unwrap();
        assert_eq!(dev.region.as_deref(), Some("us-east-2"));
        assert_eq!(dev.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(dev.credentials, keys("B", Some("T==")));
    }

    #[test]
    fn endpoint_of_the_service_precedes_the_endpoint_of_the_profile() {
        let config = "[profile \"a b\"]\nservices = local\nendpoint_url = http://127.0.0.1:1\n\
                      s3 =\n  addressing_style = path\n[services local]\n\
                      dynamodb =\n  endpoint_url = http://127.0.0.1:2\n\
                      s3 =\n  endpoint_url = http://127.0.0.1:3\n";
        let profile = read("a b", config, "").unwrap();
        assert_eq!(profile.endpoint.as_deref(), Some("http://127.0.0.1:3"));
        assert_eq!(profile.credentials, None);
    }

    #[test]
    fn a_missing_profile_is_an_error_only_if_it_was_chosen() {
        assert_eq!(read("", "", "").unwrap(), Profile::default());
        let error = read("dev", "[default]\nregion = x\n[dev]\n", "").unwrap_err();
        assert!(error.reason.contains("there is no profile dev"), "{error}");
        assert!(read("dev", "[dev\n", "").unwrap_err().reason.contains("cannot be parsed"));
    }

    #[test]
    fn sign_ins_and_roles_are_recognized() {
        let of = |text: &str| read("", &format!("[default]\n{text}"), "").unwrap().credentials;
        for (text, origin) in [
            ("sso_session = a", "a sign-in (SSO)"),
            ("role_arn = a\nsource_profile = b", "another role"),
            ("role_arn = a\ncredential_process = b", "another role"),
            ("login_session = a", "a sign-in"),
        ] {
            assert_eq!(of(text), Some(ProfileCredentials::Foreign(origin)), "{text}");
        }
        let command = "sso_session = a\ncredential_process = aws configure export-credentials";
        let expected = "aws configure export-credentials".to_owned();
        assert_eq!(of(command), Some(ProfileCredentials::Command(expected)));
        let (token_file, role) = ("/t".to_owned(), "r".to_owned());
        let expected = ProfileCredentials::WebIdentity { token_file, role, session: None };
        assert_eq!(of("role_arn = r\nweb_identity_token_file = /t"), Some(expected));
    }

    #[tokio::test]
    async fn keys_are_read_again_after_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        let write = |id: &str| {
            let text = format!("[default]\naws_access_key_id={id}\naws_secret_access_key=b\n");
            fs::write(&path, text).unwrap();
        };
        let variable = |variable: &str| match variable {
            "AWS_CONFIG_FILE" => Some(folder.path().join("config").into()),
            "AWS_SHARED_CREDENTIALS_FILE" => Some(path.clone().into()),
            _ => None,
        };
        let traffic: Arc<Traffic> = Arc::default();
        let provider = ProfileKeys::new(ProfileFiles::from(variable).unwrap(), traffic.clone());
        write("old");
        assert_eq!(provider.get_credential().await.unwrap().key_id, "old");
        write("new");
        traffic.refuse();
        let begun = Instant::now();
        // New keys are not renewed at once.
        while provider.get_credential().await.unwrap().key_id == "old" {
            assert!(begun.elapsed() < FILE_AGE_MAX);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(begun.elapsed() >= RENEWAL_PAUSE / 2);
    }

    #[tokio::test]
    async fn a_command_prints_keys_and_its_failures_are_explained() {
        let keys = r#"printf '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"}'"#;
        let printed = run(&format!("sh -c {}", shlex::try_quote(keys).unwrap())).await.unwrap();
        assert_eq!((&*printed.access_key_id, printed.expiration), ("a", None));
        for (command, named) in [
            ("", "is no command"),
            ("/none", "cannot be run"),
            ("sh -c 'echo no sign-in >&2; exit 3'", "no sign-in"),
            ("echo secret", "prints no keys"),
        ] {
            let error = run(command).await.err().unwrap();
            assert!(error.reason.contains(named) && !error.reason.contains("secret"), "{error}");
        }
    }
}
