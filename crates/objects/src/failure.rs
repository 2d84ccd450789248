//! Why a request failed, in words for the user and as an error of the store.

use std::error::Error as StdError;

use object_store::Error as RequestError;
use object_store::client::{HttpError, HttpErrorKind};
use rustix::io::Errno;
use swarmletfs_base::error::Error;

use crate::profile::ProfileError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The URL cannot be used.
    Url,
    NoBucket,
    NoCredentials,
    /// The profile of the user cannot be used.
    Profile,
    Denied,
    /// The credentials were right, and are no longer.
    Expired,
    /// The clock of this machine is wrong.
    Clock,
    /// The provider refuses further requests for now.
    Throttled,
    /// The credentials may not write.
    ReadOnly,
    /// No connection could be made.
    Unreachable,
    TimedOut,
    /// There is nothing beneath the prefix.
    Empty,
    TooMany,
    /// The object was removed, or is another version.
    Gone,
    Other,
}

impl FailureKind {
    /// Returns the kind of the same failure for a request with this purpose.
    fn of_purpose(self, purpose: Purpose) -> FailureKind {
        match (self, purpose) {
            (FailureKind::Denied, Purpose::Write) => FailureKind::ReadOnly,
            (kind, _) => kind,
        }
    }
}

/// A request that failed for good: repetitions that may help were made.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct RequestFailure {
    pub(crate) kind: FailureKind,
    reason: String,
    /// The remedy, if it is not the one of the kind.
    cure: Option<String>,
}

/// Purpose of a request, which decides the meaning of an absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    List,
    Read,
    Write,
}

/// Address from which machines of a provider get credentials. Elsewhere nothing answers there.
const MACHINE_CREDENTIALS: &str = "169.254.169.254";

/// Words of the client about an answer that has no body.
const BARE_REDIRECT: &str = "redirect without LOCATION";
const THROTTLED: &str = "it limits the rate of requests";
/// Codes of the providers, with the text for the user.
const CODES: [(&str, FailureKind, &str); 23] = [
    ("NoSuchBucket", FailureKind::NoBucket, "there is no such bucket"),
    ("ContainerNotFound", FailureKind::NoBucket, "there is no such container"),
    ("ContainerBeingDeleted", FailureKind::NoBucket, "the container is being deleted"),
    ("PermanentRedirect", FailureKind::NoBucket, "the bucket is in another region"),
    ("AuthorizationHeaderMalformed", FailureKind::NoBucket, "the bucket is in another region"),
    ("InvalidAccessKeyId", FailureKind::Denied, "the access key is unknown"),
    ("SignatureDoesNotMatch", FailureKind::Denied, "the secret key is wrong"),
    ("AuthenticationFailed", FailureKind::Denied, "the key is wrong"),
    ("AuthorizationFailure", FailureKind::Denied, "the key is wrong"),
    ("InvalidToken", FailureKind::Denied, "the session token is wrong"),
    ("AccessDenied", FailureKind::Denied, "access is denied"),
    ("ExpiredToken", FailureKind::Expired, "the credentials have expired"),
    ("ExpiredTokenException", FailureKind::Expired, "the credentials have expired"),
    ("TokenRefreshRequired", FailureKind::Expired, "the credentials have expired"),
    ("RequestTimeTooSkewed", FailureKind::Clock, "the clock of this machine is wrong"),
    ("RequestExpired", FailureKind::Clock, "the clock of this machine is wrong"),
    ("SlowDown", FailureKind::Throttled, THROTTLED),
    ("ServerBusy", FailureKind::Throttled, THROTTLED),
    ("TooManyRequests", FailureKind::Throttled, THROTTLED),
    ("RequestLimitExceeded", FailureKind::Throttled, THROTTLED),
    ("rateLimitExceeded", FailureKind::Throttled, THROTTLED),
    ("InvalidObjectState", FailureKind::Other, "the object is archived"),
    ("InvalidRange", FailureKind::Gone, "the object is shorter now"),
];

impl RequestFailure {
    pub(crate) fn new(kind: FailureKind, reason: impl Into<String>) -> RequestFailure {
        RequestFailure { kind, reason: reason.into(), cure: None }
    }

    pub fn timed_out() -> RequestFailure {
        RequestFailure::new(FailureKind::TimedOut, "it did not answer in time")
    }

    pub(crate) fn throttled() -> RequestFailure {
        RequestFailure::new(FailureKind::Throttled, THROTTLED)
    }

    /// Explains an error of the client.
    pub(crate) fn explain(error: &RequestError, purpose: Purpose) -> RequestFailure {
        let profile = chain(error).find_map(|error| error.downcast_ref::<ProfileError>());
        if let Some(ProfileError { reason, cure }) = profile.cloned() {
            return RequestFailure { kind: FailureKind::Profile, reason, cure: Some(cure) };
        }
        let text = error.to_string();
        if text.contains(MACHINE_CREDENTIALS) {
            return RequestFailure::new(FailureKind::NoCredentials, "there are no credentials");
        }
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let known = code.and_then(|(code, _)| CODES.iter().find(|(known, ..)| *known == code));
        if let Some((_, kind, reason)) = known {
            return RequestFailure::new(kind.of_purpose(purpose), *reason);
        }
        match error {
            RequestError::NotFound { .. } if purpose == Purpose::Read => {
                return RequestFailure::new(FailureKind::Gone, "the object was removed");
            }
            RequestError::Precondition { .. } => {
                return RequestFailure::new(FailureKind::Gone, "the object was replaced");
            }
            _ => {}
        }
        if text.contains(BARE_REDIRECT) {
            return RequestFailure::new(FailureKind::NoBucket, "the bucket is in another region");
        }
        let status = StatusClass::find(&text);
        match (status, transport(error)) {
            (StatusClass::NotFound, _) => {
                RequestFailure::new(FailureKind::NoBucket, "there is no such bucket")
            }
            (StatusClass::Denied, _) => {
                RequestFailure::new(FailureKind::Denied.of_purpose(purpose), "access is denied")
            }
            (StatusClass::Throttled, _) => RequestFailure::throttled(),
            (_, Some(HttpErrorKind::Connect)) => RequestFailure::new(
                FailureKind::Unreachable,
                format!("it cannot be reached: {}", innermost(error)),
            ),
            (_, Some(HttpErrorKind::Timeout)) => RequestFailure::timed_out(),
            _ => RequestFailure::new(
                FailureKind::Other,
                code.map_or_else(|| innermost(error), |(code, _)| format!("it answers {code}")),
            ),
        }
    }

    /// Returns the remedy for a store that cannot be opened.
    pub fn cure(&self) -> String {
        if let Some(cure) = &self.cure {
            return cure.clone();
        }
        let cure = match self.kind {
            FailureKind::Url => {
                "try s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
            }
            FailureKind::NoBucket => "check its name, and the region",
            FailureKind::NoCredentials => {
                "set $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, or $AWS_PROFILE, or those of the \
                 provider"
            }
            FailureKind::Profile => "check the profile and $AWS_PROFILE",
            FailureKind::Expired => "renew the credentials",
            FailureKind::Clock => "set the clock",
            FailureKind::Throttled => "try again later, and read a longer prefix",
            FailureKind::Denied => "check the credentials, and that they may list and read there",
            FailureKind::ReadOnly => "check the credentials, and that they may write there",
            FailureKind::Unreachable | FailureKind::TimedOut => {
                "check the network, and the endpoint, such as $AWS_ENDPOINT_URL"
            }
            FailureKind::Empty => "check the prefix, or try again when the first object is there",
            FailureKind::TooMany => "try a longer prefix",
            FailureKind::Gone | FailureKind::Other => "try again",
        };
        cure.to_owned()
    }
}

impl From<&RequestFailure> for Error {
    fn from(failure: &RequestFailure) -> Error {
        match failure.kind {
            FailureKind::Gone => Error::Stale,
            FailureKind::Denied
            | FailureKind::ReadOnly
            | FailureKind::Expired
            | FailureKind::Clock
            | FailureKind::Profile
            | FailureKind::NoCredentials => Error::Io(Errno::ACCESS),
            FailureKind::Throttled => Error::Io(Errno::BUSY),
            FailureKind::TimedOut | FailureKind::Unreachable => Error::Io(Errno::TIMEDOUT),
            FailureKind::Url
            | FailureKind::NoBucket
            | FailureKind::Empty
            | FailureKind::TooMany
            | FailureKind::Other => Error::Io(Errno::IO),
        }
    }
}

/// The part of an answer's status that decides the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StatusClass {
    NotFound,
    Denied,
    Throttled,
    None,
}

impl StatusClass {
    /// Finds the status in the text of an error. The client does not export the error that has it.
    fn find(text: &str) -> StatusClass {
        let status = text.split_once("status code: ").map_or("", |(_, rest)| rest);
        match status.get(..3) {
            Some("404") => StatusClass::NotFound,
            Some("401" | "403") => StatusClass::Denied,
            Some("429") => StatusClass::Throttled,
            _ => StatusClass::None,
        }
    }
}

/// Returns the error and its sources.
fn chain(error: &RequestError) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let first: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(first), |error: &&(dyn StdError + 'static)| (*error).source())
}

fn transport(error: &RequestError) -> Option<HttpErrorKind> {
    chain(error).find_map(|error| error.downcast_ref::<HttpError>()).map(HttpError::kind)
}

fn innermost(error: &RequestError) -> String {
    let text = chain(error).last().map(ToString::to_string).unwrap_or_default();
    let text = text.split(" (os error").next().unwrap_or_default();
    swarmletfs_base::name::printable(text.to_lowercase().as_bytes())
}
