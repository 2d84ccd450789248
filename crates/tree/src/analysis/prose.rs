//! The language model that puts facts about workers into prose, if the user configured one.

use std::fmt;

use swarmletfs_base::deadline::Deadline;
use thiserror::Error;

/// Asks a language model. The crate `prose` has the implementation.
pub trait ProseWriter: fmt::Debug + Send + Sync {
    /// Returns the name of the model.
    fn model(&self) -> &str;

    /// Returns the answer to `request`: a kept one to an equal request, or a new one.
    ///
    /// # Errors
    ///
    /// [`NoProse::Pending`] if `deadline` passed first, in which case a later call gets the answer;
    /// [`NoProse::Failed`] if there is none.
    fn write(&self, request: &ProseRequest, deadline: Deadline<'_>) -> Result<String, NoProse>;
}

/// A question to a language model, with the texts that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProseRequest {
    /// The kind of the question, for the log of uses.
    pub purpose: &'static str,
    /// The workers that the texts are about.
    pub workers: Vec<String>,
    pub instruction: String,
    pub material: Vec<Material>,
}

/// A text of the tree that the model is given. Its content is hostile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Material {
    /// The name of the file with this text.
    pub name: String,
    pub text: String,
}

/// The reason why there is no prose.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoProse {
    #[error("the model has not answered yet")]
    Pending,
    /// The model was not asked, or gave no answer.
    #[error("{0}")]
    Failed(String),
    #[error("no language model is configured; try --model-command or --model-url")]
    Unconfigured,
}
