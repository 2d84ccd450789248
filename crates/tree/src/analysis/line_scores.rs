//! The relevance of each line of an output to a failure, as a score.
//!
//! A score depends on the signs in the line ([`LineSigns`]) and on its position: shortly before an
//! exit marker or the end of the output, shortly after a line with a sign of failure, before lines
//! in the color of errors, and near lines that name a source location. Lines of one paragraph or
//! stack trace have similar scores.
//!
//! The weights come from a logistic regression on labeled logs of failed builds, rounded.
//! docs/EVIDENCE.md lists them with the effect of each.
//!
//! Scores are computed by additions, multiplications and divisions only, so they are equal on every
//! machine.

use super::lines::LineChunk;
use swarmletfs_base::failure_signs::LineSigns;

/// Weight of a line of a stack trace.
const FRAME: f64 = 2.1;
/// Weight of a line that names a source location.
const LOCATION: f64 = 1.2;
/// Weight of each nearby line that names a source location, before decay.
const LOCATION_NEAR: f64 = 0.4;
/// Weight of each following line in the color of errors, before decay.
const RED_SOON: f64 = 0.7;
/// Weight at an exit marker or the end of the output.
const ENDING: f64 = 3.0;
/// Weight at a line with a sign of failure.
const AFTER_FAILURE: f64 = 2.4;

/// Distance before an ending at which a quarter of its weight remains, in bytes.
const ENDING_BYTES: f64 = 4_000.0;
/// Distance after a failure at which a quarter of its weight remains, in bytes.
const AFTER_FAILURE_BYTES: f64 = 200.0;
/// Factor per line by which a nearby source location decays.
const DECAY_LOCATION: f64 = 0.7;
/// Factor per line by which a following line in the color of errors decays.
const DECAY_RED: f64 = 0.93;
/// Maximum sum of decayed signs near a line.
const NEAR_MAX: f64 = 3.0;
/// Part of the difference to the highest score of its paragraph that a line gains.
const PARAGRAPH: f64 = 0.6;
/// Number of lines from which a block no longer counts as a paragraph.
const PARAGRAPH_MAX: usize = 60;
/// Score of the first chunk of a long line, relative to the highest score in that line.
const LINE_START: f64 = 1.1;
/// Minimum score of an indented line or a continued long line, relative to the previous score.
const INDENTED: f64 = 0.9;

#[derive(Debug, Default)]
pub(super) struct LineScores {
    pub scores: Vec<f64>,
    /// Index of the highest-scoring chunk with a sign of failure, the latest among equals. It is
    /// worth showing wherever it is.
    pub failure: Option<usize>,
}

pub(super) fn score_lines(chunks: &[LineChunk<'_>], size: u64) -> LineScores {
    // Overwritten progress states show nothing and do not count as neighbors.
    let shown: Vec<&LineChunk<'_>> = chunks.iter().filter(|chunk| !chunk.text.is_empty()).collect();
    let signs: Vec<LineSigns> = shown.iter().map(|chunk| LineSigns::detect(&chunk.text)).collect();
    let mut shown_scores = smooth_scores(&shown, base_scores(&shown, &signs, size));
    boost_error_messages(&shown, &signs, &mut shown_scores);
    let mut shown_scores = shown_scores.into_iter().zip(signs);
    let mut failure: Option<(usize, f64)> = None;
    let mut scores = Vec::with_capacity(chunks.len());
    let mut last = 0.0;
    for (at, chunk) in chunks.iter().enumerate() {
        if !chunk.text.is_empty()
            && let Some((score, signs)) = shown_scores.next()
        {
            last = score;
            if signs.strong && failure.is_none_or(|(_, highest)| highest <= score) {
                failure = Some((at, score));
            }
        }
        scores.push(last);
    }
    LineScores { scores, failure: failure.map(|(at, _)| at) }
}

fn base_scores(chunks: &[&LineChunk<'_>], signs: &[LineSigns], size: u64) -> Vec<f64> {
    let weight_if = |present: bool, weight: f64| if present { weight } else { 0.0 };
    let red: Vec<f64> = chunks.iter().map(|chunk| weight_if(chunk.red, 1.0)).collect();
    let locations: Vec<f64> = signs.iter().map(|signs| weight_if(signs.location, 1.0)).collect();
    let red_soon = decay_preceding(&red, DECAY_RED);
    let locations_after = decay_preceding(&locations, DECAY_LOCATION);
    let locations_before = decay_following(&locations, DECAY_LOCATION);
    let to_end = to_end(chunks, signs, size);
    let since_failure = since_failure(chunks, signs);
    let decayed = |bytes: Option<u64>, scale: f64| {
        bytes.map_or(0.0, |bytes| 1.0 / square(1.0 + bytes as f64 / scale))
    };
    let locations = locations_after.into_iter().zip(locations_before);
    let distances = to_end.into_iter().zip(since_failure);
    let lines = signs.iter().zip(locations).zip(red_soon).zip(distances);
    let scores = lines.map(
        |(((signs, (location_after, location_before)), red_soon), (to_end, since_failure))| {
            weight_if(signs.frame, FRAME)
                + weight_if(signs.location, LOCATION)
                + LOCATION_NEAR * (location_after + location_before)
                + RED_SOON * red_soon
                + ENDING * decayed(to_end, ENDING_BYTES)
                + AFTER_FAILURE * decayed(since_failure, AFTER_FAILURE_BYTES)
        },
    );
    scores.collect()
}

fn square(x: f64) -> f64 {
    x * x
}

/// Returns for each line the decayed sum of flags on the lines after it.
fn decay_preceding(flags: &[f64], decay: f64) -> Vec<f64> {
    let mut sums: Vec<f64> =
        decay_following(&flags.iter().rev().copied().collect::<Vec<_>>(), decay);
    sums.reverse();
    sums
}

/// Returns for each line the decayed sum of flags on the lines before it.
fn decay_following(flags: &[f64], decay: f64) -> Vec<f64> {
    let mut sum = 0.0;
    flags
        .iter()
        .map(|flag| {
            let here: f64 = sum;
            sum = (sum + flag) * decay;
            here.min(NEAR_MAX)
        })
        .collect()
}

/// Returns the bytes from each line to the next exit marker, or to the end of an output without
/// one.
///
/// Lines after the last exit marker have no distance, since they come after the failure.
fn to_end(chunks: &[&LineChunk<'_>], signs: &[LineSigns], size: u64) -> Vec<Option<u64>> {
    let mut end = if signs.iter().any(|signs| signs.exit) { None } else { Some(size) };
    let mut all: Vec<Option<u64>> = Vec::with_capacity(chunks.len());
    for (chunk, signs) in chunks.iter().zip(signs).rev() {
        if signs.exit {
            end = Some(chunk.end);
        }
        all.push(end.map(|end| end.saturating_sub(chunk.end)));
    }
    all.reverse();
    all
}

/// Returns the bytes to each line from the latest line with a sign of failure.
fn since_failure(chunks: &[&LineChunk<'_>], signs: &[LineSigns]) -> Vec<Option<u64>> {
    let mut from = None;
    let distances = chunks.iter().zip(signs).map(|(chunk, signs)| {
        if signs.strong {
            from = Some(chunk.start);
        }
        from.map(|from: u64| chunk.start.saturating_sub(from))
    });
    distances.collect()
}

/// Returns scores in which lines of one paragraph, indented block or long line are similar.
fn smooth_scores(chunks: &[&LineChunk<'_>], mut scores: Vec<f64>) -> Vec<f64> {
    raise_paragraphs(chunks, &mut scores);
    raise_indented_lines(chunks, &mut scores);
    let mut scores = weighted_averages(&scores);
    raise_line_starts(chunks, &mut scores);
    scores
}

fn raise_paragraphs(chunks: &[&LineChunk<'_>], scores: &mut [f64]) {
    let mut from = 0;
    for at in 0..=chunks.len() {
        if chunks.get(at).is_some_and(|chunk| !chunk.text.trim().is_empty()) {
            continue;
        }
        if let Some(paragraph) =
            scores.get_mut(from..at).filter(|lines| lines.len() < PARAGRAPH_MAX)
        {
            let most = paragraph.iter().copied().fold(0.0, f64::max);
            paragraph.iter_mut().for_each(|score| *score += PARAGRAPH * (most - *score));
        }
        from = at + 1;
    }
}

/// Raises the scores of indented lines and continued long lines to most of the score before them.
fn raise_indented_lines(chunks: &[&LineChunk<'_>], scores: &mut [f64]) {
    let mut last = 0.0;
    for (at, (score, chunk)) in scores.iter_mut().zip(chunks).enumerate() {
        let is_indented = chunk.text.starts_with([' ', '\t']) && !chunk.text.trim().is_empty();
        if is_indented || is_continuation(chunks, at) {
            *score = score.max(last * INDENTED);
        }
        last = *score;
    }
}

/// Returns the weighted average of each score and the two on either side. Lines beyond both ends
/// score 0.
fn weighted_averages(scores: &[f64]) -> Vec<f64> {
    let near = |at: usize, by: isize| {
        at.checked_add_signed(by).and_then(|at| scores.get(at)).map_or(0.0, |score| *score)
    };
    let averages = (0..scores.len()).map(|at| {
        (3.0 * near(at, 0) + 2.0 * (near(at, -1) + near(at, 1)) + near(at, -2) + near(at, 2)) / 9.0
    });
    averages.collect()
}

/// Raises the score at the start of each long line above the rest of the line, since the start
/// names its subject.
fn raise_line_starts(chunks: &[&LineChunk<'_>], scores: &mut [f64]) {
    for at in (1..scores.len()).rev().filter(|at| is_continuation(chunks, *at)) {
        if let Some([before, rest]) = scores.get_mut(at - 1..=at) {
            let factor = if is_continuation(chunks, at - 1) { 1.0 } else { LINE_START };
            *before = before.max(*rest * factor);
        }
    }
}

fn is_continuation(chunks: &[&LineChunk<'_>], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| chunks.get(before));
    before.is_some_and(|before| !before.text.ends_with('\n') && !before.text.ends_with("\\n"))
}

/// Raises the score of an error message directly above or below a stack trace to the highest score
/// of the trace.
fn boost_error_messages(chunks: &[&LineChunk<'_>], signs: &[LineSigns], scores: &mut [f64]) {
    let is_indented =
        |at: usize| chunks.get(at).is_some_and(|chunk| chunk.text.starts_with([' ', '\t']));
    let is_traced = |at: usize| is_indented(at) || signs.get(at).is_some_and(|signs| signs.frame);
    let boosts: Vec<(usize, f64)> = (0..scores.len())
        .filter(|at| signs.get(*at).is_some_and(|signs| signs.strong) && !is_traced(*at))
        .map(|at| {
            let above =
                (at.saturating_sub(PARAGRAPH_MAX)..at).rev().take_while(|at| is_traced(*at));
            let below = (at + 1..scores.len()).take(PARAGRAPH_MAX).take_while(|at| is_traced(*at));
            let highest =
                above.chain(below).filter_map(|at| scores.get(at).copied()).fold(0.0, f64::max);
            (at, highest)
        })
        .collect();
    for (at, highest) in boosts {
        if let Some(score) = scores.get_mut(at) {
            *score = score.max(highest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::split_chunks;
    use super::*;

    /// Returns the line with the highest score.
    fn highest_line(raw: &str) -> String {
        let (chunks, _) = split_chunks(raw.as_bytes(), 0);
        let scores = score_lines(&chunks, raw.len() as u64).scores;
        let most = (0..chunks.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap();
        chunks[most].text.trim().to_owned()
    }

    fn chatter(lines: usize) -> String {
        (0..lines).map(|n| format!("compiling module {n} of many\n")).collect()
    }

    #[test]
    fn without_any_sign_the_end_weighs_most() {
        let log = chatter(100);
        let (chunks, _) = split_chunks(log.as_bytes(), 0);
        let scores = score_lines(&chunks, log.len() as u64).scores;
        assert!(scores[10] < scores[50] && scores[50] < scores[90], "{scores:?}");
    }

    #[test]
    fn what_stands_before_an_exit_marker_weighs_more_than_what_comes_after_it() {
        let log = format!("{}the cause\nexited with code 2\n{}", chatter(100), chatter(300));
        let (chunks, _) = split_chunks(log.as_bytes(), 0);
        let scores = score_lines(&chunks, log.len() as u64).scores;
        assert!(scores[100] > 10.0 * scores[400], "{} {}", scores[100], scores[400]);
    }

    #[test]
    fn a_message_and_its_stack_trace_weigh_alike() {
        let log = format!(
            "{}\nerror: it broke\n    at f (src/a.x:10)\n    at g (src/b.x:20)\n\n{}",
            chatter(200),
            chatter(200)
        );
        let (chunks, _) = split_chunks(log.as_bytes(), 0);
        let scores = score_lines(&chunks, log.len() as u64).scores;
        let (message, trace) = (scores[201], scores[203]);
        assert!(
            message > trace / 2.0 && message > 2.0 * scores[150] && trace > 2.0 * scores[150],
            "{scores:?}"
        );
        assert!(["at f (src/a.x:10)", "error: it broke"].contains(&highest_line(&log).as_str()));
    }

    #[test]
    fn the_message_below_a_stack_trace_weighs_as_much_as_the_trace() {
        let frames: String =
            (0..20).map(|n| format!("  File \"src/a{n}.x\", line {n}, in f\n    g()\n")).collect();
        let log = format!(
            "Traceback (most recent call first):\n{frames}x.OddError: no such thing\n</output>\n"
        );
        let (chunks, _) = split_chunks(log.as_bytes(), 0);
        let scores = score_lines(&chunks, log.len() as u64).scores;
        let most = scores.iter().copied().fold(0.0, f64::max);
        assert_eq!(scores[41], most, "{scores:?}");
    }

    /// Promise: The beginning of a long line scores highest.
    #[test]
    fn beginning_of_a_long_line_scores_highest() {
        let log = format!("unknown kind 'x'. {}\n", "known: one, another; ".repeat(500));
        assert!(highest_line(&log).starts_with("unknown kind 'x'."));
    }

    #[test]
    fn of_equal_failures_the_latest_is_the_one_worth_a_look() {
        let log = "error: x\n".repeat(50) + &chatter(400);
        let (chunks, _) = split_chunks(log.as_bytes(), 0);
        let LineScores { scores, failure } = score_lines(&chunks, log.len() as u64);
        let most = (0..50).map(|at| scores[at]).fold(0.0, f64::max);
        assert!(failure.is_some_and(|at| at < 50 && scores[at] == most), "{failure:?}");
        let fine = chatter(10);
        assert_eq!(
            score_lines(&super::super::lines::split_chunks(fine.as_bytes(), 0).0, 1).failure,
            None
        );
    }

    #[test]
    fn states_that_were_written_over_weigh_like_what_stands_before_them() {
        let log = "error: x\n10%\r20%\r30%\ndone\n";
        let (chunks, _) = split_chunks(log.as_bytes(), 0);
        let scores = score_lines(&chunks, log.len() as u64).scores;
        assert_eq!(scores.len(), chunks.len());
        assert_eq!(scores[0], scores[1]);
    }
}
