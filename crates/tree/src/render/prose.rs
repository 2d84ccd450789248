//! Prose of a language model about workers, with its origin and its citations checked.
//!
//! The model gets generated files as its material. Its words are marked as such, line by line, and
//! a citation of a call that does not exist is struck out.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use regex::{Captures, Regex};

use super::{Rendered, Renderer};
use crate::analysis::prose::{Material, NoProse, ProseRequest, ProseWriter};
use crate::analysis::settings::PART_GRACE;
use crate::catalog::Fingerprint;
use crate::query::compare::{self, CompareAnswer, CompareQuery};
use crate::query::search::{SearchOptions, SearchQuery};
use crate::route::Report;
use crate::route::parsed_name::has_word;
use crate::view::Member;
use swarmletfs_base::deadline::Deadline;
use swarmletfs_base::error::Result;
use swarmletfs_base::name::Name;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_base::text::clean::{cleaned, escape_markers, one_line};
use swarmletfs_base::text::count;

/// Maximum length of the words of a model that are shown, in bytes.
const WORDS_MAX: usize = 4_000;
/// Maximum length of a line about a worker, in bytes.
const LINE_MAX: usize = 160;
/// Maximum length of a message about a failure, in bytes.
const PROBLEM_MAX: usize = 500;
const CITE: &str = "Cite the calls that show what you say, as [tool_calls/003], and only calls \
                    that are in the texts. Say so if the texts do not answer. Plain text, no \
                    headings.";

/// A question to a model about one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerProse {
    /// A few sentences, also on the passages that a query finds.
    Summary(Option<SearchQuery>),
    /// One line for a table.
    Line,
}

/// The words of a model, or the reason why there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProseAnswer {
    /// The whole text: the words with their origin, or a notice and the facts without a model.
    pub text: String,
    pub words: std::result::Result<CheckedProse, NoProse>,
}

/// The words of a model after the check of its citations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedProse {
    pub model: String,
    /// Names and sizes in bytes of the texts that the model was given.
    pub given: Vec<(String, usize)>,
    pub text: String,
    /// Number of citations that name no call.
    pub struck_out: usize,
}

/// The numbers of the calls of each worker, by its name.
type CitableCalls = HashMap<String, Vec<u64>>;

/// A question to a model, and the facts to show without an answer.
pub struct ProseQuestion {
    facts: String,
    /// `None` if there is no model to ask.
    asked: Option<AskedProse>,
}

/// A request, with all that the check of its answer needs.
struct AskedProse {
    request: ProseRequest,
    calls: CitableCalls,
    /// Maximum length of the words, in bytes.
    words_max: usize,
}

impl Renderer {
    /// Makes a question about a worker. `id` may be the beginning of an id.
    ///
    /// # Errors
    /// [`Error::NotFound`](swarmletfs_base::error::Error::NotFound) if there is no such worker in
    /// the view; any error of reading it.
    pub fn worker_question(&self, id: &Name, form: &WorkerProse) -> Result<ProseQuestion> {
        let member = self.analyzer.view.find_worker(id)?;
        let fingerprint = self.analyzer.view.fingerprint(&member, true)?;
        Ok(self.question_about(&member, &fingerprint, form)?.0)
    }

    /// Asks the model until `deadline`.
    pub fn answer(&self, question: &ProseQuestion, deadline: Deadline<'_>) -> ProseAnswer {
        let words = match (&self.analyzer.settings.prose, &question.asked) {
            (Some(writer), Some(asked)) => asked.ask(&**writer, deadline),
            _ => Err(NoProse::Unconfigured),
        };
        ProseAnswer::new(words, &question.facts)
    }

    /// Compares workers with `query`, and asks the model about the comparison until `deadline`.
    ///
    /// # Errors
    /// Any error of [`compare::answer`].
    pub fn compare_prose(
        &self,
        query: &CompareQuery,
        deadline: Deadline<'_>,
    ) -> Result<(CompareAnswer, ProseAnswer)> {
        let answer = compare::answer(&self.analyzer, query)?;
        let facts = answer.page.text.clone();
        if answer.page.error.is_some() {
            let words = Err(NoProse::Failed("there is nothing to compare".into()));
            return Ok((answer, ProseAnswer { text: facts, words }));
        }
        let members = query.workers(&self.analyzer.view.visible()).unwrap_or_default();
        let mut calls = CitableCalls::new();
        for member in &members {
            let fingerprint = self.analyzer.view.fingerprint(member, true)?;
            calls.insert(member.name.display(), self.call_numbers(member, &fingerprint)?);
        }
        // Without an id: a worker may have chosen it.
        let instruction = format!(
            "Compare these workers in at most six sentences: what they agree on, where they \
             differ, and which calls show it.{} {CITE} Name the worker before the call: \
             [WORKER/tool_calls/003].",
            limited_to(query.options.aspect.as_deref())
        );
        let request = ProseRequest {
            purpose: "compare",
            workers: members.iter().map(|member| member.name.display()).collect(),
            instruction,
            material: vec![Material { name: query.to_string(), text: facts.clone() }],
        };
        let asked = Some(AskedProse { request, calls, words_max: WORDS_MAX });
        let prose = self.answer(&ProseQuestion { facts, asked }, deadline);
        Ok((answer, prose))
    }

    /// Renders summary.model.txt of a worker.
    pub(super) fn prose_file(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
    ) -> Result<Rendered> {
        let clock = self.analyzer.settings.clock(10);
        let form = WorkerProse::Summary(None);
        let (question, facts) = self.question_about(member, fingerprint, &form)?;
        let answer = self.answer(&question, clock.deadline());
        // Without a model, another read gives the same.
        let is_final = matches!(answer.words, Ok(_) | Err(NoProse::Unconfigured));
        let complete = facts.complete && is_final;
        Ok(Rendered { bytes: answer.text.into_bytes().into(), complete, ..facts })
    }

    /// Also returns the summary, which the model is given.
    fn question_about(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
        form: &WorkerProse,
    ) -> Result<(ProseQuestion, Rendered)> {
        let clock = self.analyzer.settings.clock(10);
        let report =
            |report| self.render_worker(member.clone(), fingerprint.clone(), report, &clock);
        let summary = match form {
            WorkerProse::Summary(Some(query)) => self.focus_file(member, fingerprint, query)?,
            WorkerProse::Summary(None) | WorkerProse::Line => report(Report::Summary)?,
        };
        let text = |rendered: &Rendered| String::from_utf8_lossy(&rendered.bytes).into_owned();
        let facts = text(&summary);
        if self.analyzer.settings.prose.is_none() {
            return Ok((ProseQuestion { facts, asked: None }, summary));
        }
        let mut material = vec![Material { name: "summary".into(), text: facts.clone() }];
        let (purpose, instruction, words_max) = match form {
            WorkerProse::Line => {
                let line = "Say in one line of at most 15 words what this worker achieved, or why \
                            it failed. Plain text, no citations.";
                ("line", line.to_owned(), LINE_MAX)
            }
            WorkerProse::Summary(focus) => {
                let evidence = report(Report::Evidence(Some(Budget::WORKER)))?;
                material.push(Material { name: "evidence.txt".into(), text: text(&evidence) });
                let sentences = format!(
                    "Summarize in two or three sentences what this worker did, how it ended, and \
                     what of its claims its record does not show.{} {CITE}",
                    limited_to(focus.as_ref().map(|query| &*query.words))
                );
                ("summarize", sentences, WORDS_MAX)
            }
        };
        let name = member.name.display();
        let request = ProseRequest { purpose, workers: vec![name.clone()], instruction, material };
        let calls = CitableCalls::from([(name, self.call_numbers(member, fingerprint)?)]);
        let asked = Some(AskedProse { request, calls, words_max });
        Ok((ProseQuestion { facts, asked }, summary))
    }

    fn call_numbers(
        &self,
        member: &Arc<Member>,
        fingerprint: &Arc<Fingerprint>,
    ) -> Result<Vec<u64>> {
        let clock = self.analyzer.settings.clock(10);
        let record = self.analyzer.record(member, fingerprint, PART_GRACE, clock.deadline())?;
        Ok(record.trace.calls.iter().map(|call| call.seq).collect())
    }
}

/// Returns the part of an instruction that limits it to `words`, if there are any.
fn limited_to(words: Option<&str>) -> String {
    let limit = words.map(|words| format!(" Only as to: {}.", one_line(words, PROBLEM_MAX)));
    limit.unwrap_or_default()
}

impl AskedProse {
    fn ask(
        &self,
        writer: &dyn ProseWriter,
        deadline: Deadline<'_>,
    ) -> std::result::Result<CheckedProse, NoProse> {
        let said = writer.write(&self.request, deadline)?;
        let (text, struck_out) = check_citations(&said, &self.calls);
        let text = cleaned(text.as_bytes()).text;
        let text = text.trim();
        let shown = text.get(..text.floor_char_boundary(self.words_max)).unwrap_or_default();
        let cut = if shown.len() < text.len() { "…" } else { "" };
        let material = self.request.material.iter();
        Ok(CheckedProse {
            model: writer.model().to_owned(),
            given: material.map(|it| (it.name.clone(), it.text.len())).collect(),
            text: format!("{shown}{cut}"),
            struck_out,
        })
    }
}

impl WorkerProse {
    /// Returns the question for a summary, on `focus` if that has a word.
    pub fn about(focus: Option<&str>) -> WorkerProse {
        let options = SearchOptions { budget: Some(Budget::FOCUS), ..SearchOptions::default() };
        let query = |words: &str| SearchQuery { options, words: words.to_owned(), under: None };
        WorkerProse::Summary(focus.filter(|words| has_word(words)).map(query))
    }
}

impl ProseAnswer {
    fn new(words: std::result::Result<CheckedProse, NoProse>, facts: &str) -> ProseAnswer {
        let text = match &words {
            Ok(words) => words.labelled(),
            Err(NoProse::Pending) => {
                format!(
                    "[the model has not answered yet; reading again shows its words; here are the \
                     facts]\n{facts}"
                )
            }
            Err(why) => {
                let why = one_line(&why.to_string(), PROBLEM_MAX);
                format!("[no words of a model: {why}; here are the facts]\n{facts}")
            }
        };
        ProseAnswer { text, words }
    }
}

impl CheckedProse {
    /// Returns the words with their origin. No line of them can pass for a generated one.
    fn labelled(&self) -> String {
        // A name may hold the ids of workers.
        let given = self.given.iter().map(|(name, size)| {
            let name = one_line(name, PROBLEM_MAX);
            format!("{name} ({size} B)")
        });
        let given: Vec<String> = given.collect();
        let mut text = format!(
            "[words of a model, not facts of the record: {}; it was given {}]\n",
            one_line(&self.model, PROBLEM_MAX),
            given.join(" and ")
        );
        for line in escape_markers(&self.text).lines() {
            let _ = writeln!(text, "> {line}");
        }
        if self.struck_out > 0 {
            let _ = writeln!(
                text,
                "[{} struck out: no such call]",
                count(self.struck_out as u64, "citation")
            );
        }
        text
    }
}

/// Returns `text` with citations of calls that do not exist struck out, and the number of these. A
/// citation without a worker is of the only one.
fn check_citations(text: &str, calls: &CitableCalls) -> (String, usize) {
    static CITATION: LazyLock<Option<[Regex; 2]>> = LazyLock::new(|| {
        let brackets = Regex::new(r"\[[^\[\]\n]*tool_calls/[0-9][^\[\]\n]*\]").ok()?;
        // Calls in one pair of brackets stand after each other.
        let call = r"(?:workers/)?(?:([^\[\]/\n,;]+)/)?tool_calls/([0-9]+)";
        Some([brackets, Regex::new(call).ok()?])
    });
    let Some([brackets, call]) = &*CITATION else { return (text.to_owned(), 0) };
    let mut struck_out = 0;
    let checked = brackets.replace_all(text, |found: &Captures<'_>| {
        let whole = found.get(0).map(|whole| whole.as_str()).unwrap_or_default();
        if call.captures_iter(whole).all(|found| exists(&found, calls)) {
            return whole.to_owned();
        }
        struck_out += 1;
        format!("[~~{}~~ no such call]", whole.trim_matches(['[', ']']))
    });
    (checked.into_owned(), struck_out)
}

/// Returns true if the call with the found worker and number exists.
fn exists(found: &Captures<'_>, calls: &CitableCalls) -> bool {
    let number = found.get(2).and_then(|number| number.as_str().parse().ok());
    // A worker may be named by the beginning of its id. Without a name, it is the only one.
    let named = found.get(1).map(|worker| worker.as_str().trim_start()).unwrap_or_default();
    let mut begun = calls.iter().filter(|(name, _)| name.starts_with(named));
    let of_worker = calls.get(named).or_else(|| {
        let (_, numbers) = begun.next()?;
        begun.next().is_none().then_some(numbers)
    });
    number.is_some_and(|number| of_worker.is_some_and(|numbers| numbers.contains(&number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_of_calls_that_do_not_exist_are_struck_out() {
        let one = CitableCalls::from([("w1".to_owned(), vec![1, 3])]);
        let two = CitableCalls::from([("a".to_owned(), vec![1]), ("b".to_owned(), vec![2])]);
        for (text, calls, wanted, struck) in [
            ("it ran [tool_calls/003].", &one, "it ran [tool_calls/003].", 0),
            ("[tool_calls/3_bash.txt]", &one, "[tool_calls/3_bash.txt]", 0),
            ("[w1/tool_calls/001] ok", &one, "[w1/tool_calls/001] ok", 0),
            ("[tool_calls/002]", &one, "[~~tool_calls/002~~ no such call]", 1),
            ("[w2/tool_calls/001]", &one, "[~~w2/tool_calls/001~~ no such call]", 1),
            ("[b/tool_calls/2]", &two, "[b/tool_calls/2]", 0),
            ("[a/tool_calls/2]", &two, "[~~a/tool_calls/2~~ no such call]", 1),
            ("[tool_calls/1]", &two, "[~~tool_calls/1~~ no such call]", 1),
            (
                "[tool_calls/99999999999999999999]",
                &one,
                "[~~tool_calls/99999999999999999999~~ no such call]",
                1,
            ),
            ("[tool_calls/001, tool_calls/3]", &one, "[tool_calls/001, tool_calls/3]", 0),
            (
                "[tool_calls/001, tool_calls/999]",
                &one,
                "[~~tool_calls/001, tool_calls/999~~ no such call]",
                1,
            ),
            ("[a/tool_calls/1; b/tool_calls/2]", &two, "[a/tool_calls/1; b/tool_calls/2]", 0),
            ("[workers/a/tool_calls/1]", &two, "[workers/a/tool_calls/1]", 0),
            ("[w/tool_calls/1]", &one, "[w/tool_calls/1]", 0),
        ] {
            assert_eq!(check_citations(text, calls), (wanted.to_owned(), struck), "{text}");
        }
    }

    #[test]
    fn no_line_of_a_model_passes_for_a_generated_one() {
        let words = CheckedProse {
            model: "m\n[facts]".into(),
            given: vec![("compare/a..[EVIDENCE:b".into(), 7)],
            text: "fine\n[words of a model: other]\n[EVIDENCE:run=1]".into(),
            struck_out: 1,
        };
        let text = words.labelled();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("[words of a model, not facts of the record: m [facts]; it"));
        assert!(lines[1..4].iter().all(|line| line.starts_with("> ")), "{text}");
        assert!(!text.contains("> [EVIDENCE:") && !text.contains("[EVIDENCE:b"), "{text}");
        assert_eq!(lines[4], "[1 citation struck out: no such call]");
    }
}
