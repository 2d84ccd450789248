//! The client of a provider, from the environment and, for S3, from a profile of the user.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use rustls::crypto::ring;

use crate::ObjectSettings;
use crate::bucket_url::{BucketUrl, Provider};
use crate::profile::{ProfileCredentials, ProfileFiles, ProfileKeys};
use crate::traffic::{PAUSE_MAX, Traffic, WatchedConnector};

/// Number of repetitions of a request that failed.
const RETRIES_MAX: usize = 3;
/// Longest time to make a connection.
const CONNECT_MAX: &str = "5s";
/// Endpoints that are this machine, where http is as safe as https.
const LOOPBACK: [&str; 3] = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
/// Setting of an emulator of Azure, whose endpoint has another variable.
const EMULATOR: &str = "emulator";

/// An object store that also lists in pages.
pub(crate) trait Remote: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Remote for T {}

/// Connects to the provider. Also returns the provider and its endpoint or account as a text.
///
/// # Errors
///
/// A setting is missing or wrong.
pub(crate) fn connect(
    url: &BucketUrl,
    settings: &ObjectSettings,
    traffic: &Arc<Traffic>,
) -> object_store::Result<(Arc<dyn Remote>, String)> {
    // The library of TLS has several providers and must be told which one. A second call changes
    // nothing.
    let _ = ring::default_provider().install_default();
    let limit = format!("{}ms", settings.deadline.as_millis());
    let connector = WatchedConnector(traffic.clone());
    let retry = retry(settings.deadline);
    macro_rules! configured {
        ($builder:ty, $key:ty) => {{
            let bounds = [("timeout", &*limit), ("connect_timeout", CONNECT_MAX)].into_iter();
            let given = settings.options.iter().map(|(key, value)| (&**key, &**value));
            let mut builder = <$builder>::from_env();
            for (key, value) in bounds.chain(given) {
                builder = builder.with_config(key.parse::<$key>()?, value);
            }
            builder.with_retry(retry).with_http_connector(connector)
        }};
    }
    Ok(match url.provider {
        Provider::S3 => {
            let mut builder = configured!(AmazonS3Builder, AmazonS3ConfigKey);
            builder = with_profile(builder, traffic)?.with_bucket_name(&url.bucket);
            let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
                .iter()
                .find_map(|key| builder.get_config_value(key));
            let endpoint = endpoint.unwrap_or_default();
            if is_this_machine(&endpoint) {
                builder = builder.with_allow_http(true);
            }
            (Arc::new(builder.build()?) as Arc<dyn Remote>, scope("s3", &[&endpoint]))
        }
        Provider::Google => {
            let mut builder = configured!(GoogleCloudStorageBuilder, GoogleConfigKey);
            builder = builder.with_bucket_name(&url.bucket);
            let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default();
            if is_this_machine(&endpoint) {
                builder = builder.with_config("allow_http".parse()?, "true");
            }
            (Arc::new(builder.build()?) as Arc<dyn Remote>, scope("gs", &[&endpoint]))
        }
        Provider::Azure => {
            let mut builder = configured!(MicrosoftAzureBuilder, AzureConfigKey);
            builder = builder.with_container_name(&url.bucket);
            let get = |key| builder.get_config_value(&key).unwrap_or_default();
            let (account, endpoint) =
                (get(AzureConfigKey::AccountName), get(AzureConfigKey::Endpoint));
            let is_emulator = get(AzureConfigKey::UseEmulator) == "true";
            if is_this_machine(&endpoint) {
                builder = builder.with_allow_http(true);
            }
            let emulator = if is_emulator { EMULATOR } else { "" };
            let scope = scope("az", &[&endpoint, &account, emulator]);
            (Arc::new(builder.build()?) as Arc<dyn Remote>, scope)
        }
    })
}

fn retry(deadline: Duration) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { max_backoff: PAUSE_MAX, ..BackoffConfig::default() },
        max_retries: RETRIES_MAX,
        retry_timeout: deadline,
    }
}

fn is_this_machine(endpoint: &str) -> bool {
    LOOPBACK.iter().any(|address| endpoint.starts_with(address))
}

fn scope(provider: &str, parts: &[&str]) -> String {
    format!("{provider} {}", parts.join(" "))
}

/// Adds the settings of the user's profile that neither the environment nor the options have.
fn with_profile(
    mut builder: AmazonS3Builder,
    traffic: &Arc<Traffic>,
) -> object_store::Result<AmazonS3Builder> {
    use AmazonS3ConfigKey::{
        AccessKeyId, Endpoint, Region, RoleArn, RoleSessionName, S3Endpoint, SecretAccessKey,
        SkipSignature, WebIdentityTokenFile,
    };
    let is_set = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
    let has_keys = is_set(&builder, AccessKeyId) || is_set(&builder, SecretAccessKey);
    let has_role = is_set(&builder, WebIdentityTokenFile) && is_set(&builder, RoleArn);
    let is_public = builder.get_config_value(&SkipSignature).is_some_and(|skip| skip == "true");
    let has_endpoint = is_set(&builder, Endpoint) || is_set(&builder, S3Endpoint);
    let has_credentials = has_keys || has_role || is_public;
    let has_region = is_set(&builder, Region);
    let is_complete = has_credentials && has_endpoint && has_region;
    let Some(files) = ProfileFiles::find().filter(|_| !is_complete) else { return Ok(builder) };
    let profile = files.read()?;
    let values = [(Region, profile.region, has_region), (Endpoint, profile.endpoint, has_endpoint)];
    for (key, value, is_set) in values {
        if let Some(value) = value.filter(|_| !is_set) {
            builder = builder.with_config(key, value);
        }
    }
    let credentials = profile.credentials.filter(|_| !has_credentials);
    Ok(match credentials {
        Some(ProfileCredentials::Foreign(origin)) => return Err(files.foreign(origin).into()),
        Some(ProfileCredentials::WebIdentity { token_file, role, session }) => {
            builder = builder.with_config(WebIdentityTokenFile, token_file);
            builder = builder.with_config(RoleArn, role);
            match session {
                Some(session) => builder.with_config(RoleSessionName, session),
                None => builder,
            }
        }
        Some(ProfileCredentials::Keys(_) | ProfileCredentials::Command(_)) => {
            builder.with_credentials(Arc::new(ProfileKeys::new(files, traffic.clone())))
        }
        None => builder,
    })
}
