//! Asks a language model that the user configured, and keeps its answers.
//!
//! Nothing here runs unless `--model-command` or `--model-url` is given. A question is asked once:
//! its answer is kept by its content, the model and the prompt, in memory and in the cache
//! directory. The threads of a mount may neither run programs nor use a network, so the threads
//! of [`LanguageModel::start`] ask for them.
//!
//! - `prompt` puts texts of workers between delimiters that they cannot guess.
//! - `command` and `server` are the two ways to ask, each within limits of time and size.
//! - `ledger` logs every question, and refuses those beyond the limits of the day.

mod command;
mod ledger;
mod prompt;
mod server;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use swarmletfs_base::cache::{DiskCache, Key, key};
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result as Outcome;
use swarmletfs_base::model::Prices;
use swarmletfs_record::write::from_io;
use swarmletfs_tree::analysis::prose::{NoProse, ProseRequest, ProseWriter};

pub use ledger::{DayLimits, ModelUse, read_uses};
pub use server::{Address, has_tls};

use ledger::Ledger;

/// Number of questions that are asked at once.
const THREADS: usize = 4;
/// Maximum number of questions that wait for a thread.
const QUEUE: usize = 256;
/// Maximum number of answers in memory.
const KEPT_MAX: usize = 256;
/// Time after which a question that failed may be asked again.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Interval at which a waiting caller checks its deadline.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum length of an answer, in bytes.
const ANSWER_MAX: usize = 64 << 10;
/// Longest time in which a model may answer, unless the user gives another.
pub const TIME_DEFAULT: Duration = Duration::from_secs(120);

/// The model to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A line for the shell: the prompt is its input, its output the answer.
    Command(String),
    /// A server with the API of OpenAI.
    Server(Address),
}

/// The model to ask, and the limits of its use.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    pub source: ModelSource,
    /// The name of the model, as answers, prices and a server know it.
    pub name: String,
    /// Longest time for one answer, at most some days.
    pub time_max: Duration,
    pub day: DayLimits,
    pub prices: Option<Arc<Prices>>,
    /// The directory of the log of uses.
    pub log: PathBuf,
}

/// A language model that answers questions about workers.
pub struct LanguageModel {
    state: Arc<ModelState>,
    /// `None` once this is dropped, which ends the threads.
    queue: Option<SyncSender<QueuedQuestion>>,
    threads: Vec<JoinHandle<()>>,
}

struct QueuedQuestion {
    key: Key,
    request: ProseRequest,
}

struct ModelState {
    config: ModelConfig,
    cache: Option<Arc<DiskCache>>,
    ledger: Ledger,
    /// Number of threads that ask now.
    busy: AtomicUsize,
    questions: Mutex<HashMap<Key, AskedQuestion>>,
    /// Notified when a question is answered.
    answered: Condvar,
}

enum AskedQuestion {
    Waiting,
    Answered(Result<String, String>, Instant),
}

impl LanguageModel {
    /// Starts the threads that ask. Answers are kept in `cache`.
    ///
    /// # Errors
    ///
    /// The log of uses cannot be written, or there are no threads.
    pub fn start(config: ModelConfig, cache: Option<Arc<DiskCache>>) -> Outcome<LanguageModel> {
        let ledger = Ledger::open(&config)?;
        let (busy, questions, answered) = Default::default();
        let state = Arc::new(ModelState { config, cache, ledger, busy, questions, answered });
        let (queue, tasks) = sync_channel(QUEUE);
        let tasks = Arc::new(Mutex::new(tasks));
        let start = |_| {
            let (state, tasks) = (state.clone(), tasks.clone());
            let thread = std::thread::Builder::new().name("model".into());
            thread.spawn(move || state.answer_all(&tasks)).map_err(from_io)
        };
        let threads = (0..THREADS).map(start).collect::<Outcome<_>>()?;
        Ok(LanguageModel { state, queue: Some(queue), threads })
    }

    fn begin(&self, key: Key, request: &ProseRequest) -> Result<(), NoProse> {
        if let Some(kept) = self.state.kept(key) {
            self.state.finish(key, Ok(kept));
            return Ok(());
        }
        let task = QueuedQuestion { key, request: request.clone() };
        if self.queue.as_ref().is_some_and(|queue| queue.try_send(task).is_ok()) {
            return Ok(());
        }
        self.state.questions.lock().remove(&key);
        Err(NoProse::Failed(format!("{QUEUE} questions wait already; try again later")))
    }
}

impl ProseWriter for LanguageModel {
    fn model(&self) -> &str {
        &self.state.config.name
    }

    fn write(&self, request: &ProseRequest, deadline: Deadline<'_>) -> Result<String, NoProse> {
        let key = self.state.key(request);
        loop {
            let mut questions = self.state.questions.lock();
            match questions.get(&key) {
                Some(AskedQuestion::Answered(Ok(said), _)) => return Ok(said.clone()),
                Some(AskedQuestion::Answered(Err(why), at)) if at.elapsed() < RETRY_AFTER => {
                    return Err(NoProse::Failed(why.clone()));
                }
                Some(AskedQuestion::Waiting) if !deadline.has_time() => {
                    return Err(NoProse::Pending);
                }
                Some(AskedQuestion::Waiting) => {
                    self.state.answered.wait_for(&mut questions, CHECK_INTERVAL);
                }
                _ => {
                    questions.insert(key, AskedQuestion::Waiting);
                    drop(questions);
                    self.begin(key, request)?;
                }
            }
        }
    }
}

impl Drop for LanguageModel {
    /// Waits until the answers are kept, but for no model that has not answered.
    fn drop(&mut self) {
        self.queue = None;
        if self.state.busy.load(Ordering::Acquire) == 0 {
            // A thread that panicked has reported it.
            self.threads.drain(..).for_each(|thread| _ = thread.join());
        }
    }
}

impl fmt::Debug for LanguageModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LanguageModel").field(&self.state.config.name).finish()
    }
}

impl ModelState {
    /// Returns the key of a request: equal ones have an equal answer.
    fn key(&self, request: &ProseRequest) -> Key {
        let config = &self.config;
        let source = match &config.source {
            ModelSource::Command(line) => line.as_str(),
            ModelSource::Server(address) => address.url(),
        };
        let mut parts = vec![source, &config.name, prompt::FORM, &request.instruction];
        for material in &request.material {
            parts.extend([material.name.as_str(), &material.text]);
        }
        let parts: Vec<&[u8]> = parts.into_iter().map(str::as_bytes).collect();
        key("model answer", &parts)
    }

    fn kept(&self, key: Key) -> Option<String> {
        String::from_utf8(self.cache.as_ref()?.get(key)?.body()?).ok()
    }

    fn answer_all(&self, tasks: &Mutex<Receiver<QueuedQuestion>>) {
        loop {
            let task = tasks.lock().recv();
            let Ok(QueuedQuestion { key, request }) = task else { return };
            self.busy.fetch_add(1, Ordering::AcqRel);
            let answer = self.answer(&request);
            if let (Ok(said), Some(cache)) = (&answer, &self.cache) {
                cache.put(key, Vec::new(), said.clone().into_bytes());
            }
            self.busy.fetch_sub(1, Ordering::AcqRel);
            self.finish(key, answer);
        }
    }

    fn finish(&self, key: Key, answer: Result<String, String>) {
        let mut questions = self.questions.lock();
        if questions.len() >= KEPT_MAX {
            let answered = questions.iter().filter_map(|(key, question)| match question {
                AskedQuestion::Waiting => None,
                AskedQuestion::Answered(_, at) => Some((*at, *key)),
            });
            let oldest = answered.min().map(|(_, key)| key);
            oldest.map(|key| questions.remove(&key));
        }
        questions.insert(key, AskedQuestion::Answered(answer, Instant::now()));
        self.answered.notify_all();
    }

    /// Asks the model within the limits of the day.
    fn answer(&self, request: &ProseRequest) -> Result<String, String> {
        let config = &self.config;
        let prompt = prompt::compose(request).map_err(|error| format!("no random: {error}"))?;
        let asked = self.ledger.begin(request, &prompt)?;
        let start = Instant::now();
        let said = match &config.source {
            ModelSource::Command(line) => command::ask(line, &prompt, config.time_max),
            ModelSource::Server(address) => {
                server::ask(address, &config.name, &prompt, config.time_max)
            }
        };
        let said = said.and_then(|said| match said.text.trim().is_empty() {
            true => Err("the model answered with nothing".to_owned()),
            false => Ok(said),
        });
        self.ledger.end(&asked, &said, start.elapsed());
        Ok(said?.text)
    }
}

/// An answer, with the tokens that the model counted.
struct Said {
    text: String,
    /// Tokens of the prompt and of the answer, if the model states them.
    tokens: Option<(u64, u64)>,
}
