//! How much each line of an output matters to who asks why it failed.
//!
//! A line weighs by what it bears ([`Signs`]) and by where it stands: soon before a program ended with a failure, or
//! before the end of the output; soon behind a line that tells of a failure; before lines in the colour of errors; near
//! others that name a place in a source. Lines that belong together, as the paragraph of a message or a stack trace,
//! weigh alike. The weights were found by logistic regression on labelled logs of failed builds, and rounded;
//! docs/EVIDENCE.md has the table, and what each is worth.
//!
//! Nothing but additions, multiplications and divisions: the same on every machine.

use super::lines::Piece;
use super::signs::Signs;

const FRAME: f64 = 2.1;
const PLACE: f64 = 1.2;
const PLACE_NEAR: f64 = 0.4;
const RED_SOON: f64 = 0.7;
const ENDING: f64 = 3.0;
const BEHIND_FAILURE: f64 = 2.4;

/// How far before an end, and behind a failure, a line still weighs a quarter of what it does there, in bytes.
const ENDING_BYTES: f64 = 4_000.0;
const BEHIND_BYTES: f64 = 200.0;
/// What is left of a near sign's weight from a line to the next, and how many of them count at most.
const FADE_PLACE: f64 = 0.7;
const FADE_RED: f64 = 0.93;
const NEAR_MAX: f64 = 3.0;
/// How much of the heaviest line of its paragraph a line takes over; a longer paragraph, in lines, is none.
const PARAGRAPH: f64 = 0.6;
const PARAGRAPH_MAX: usize = 60;
/// What the first piece of a long line weighs against the heaviest of that line.
const LINE_BEGINS: f64 = 1.1;
/// What a line that is indented, or the next piece of a long one, has at least of the weight of the one before it.
const INDENTED: f64 = 0.9;

/// What the pieces of an output weigh.
#[derive(Debug, Default)]
pub(super) struct Weighed {
    /// Of each piece.
    pub(super) weights: Vec<f64>,
    /// The heaviest of those that tell of a failure, the latest of equals: it is worth a look wherever it stands.
    pub(super) failure: Option<usize>,
}

/// Weighs `pieces`, which are in order, of an output of `size` bytes.
pub(super) fn weigh(pieces: &[Piece<'_>], size: u64) -> Weighed {
    // States that were written over show nothing, and are nobody's neighbours.
    let shown: Vec<&Piece<'_>> = pieces.iter().filter(|piece| !piece.text.is_empty()).collect();
    let signs: Vec<Signs> = shown.iter().map(|piece| Signs::of(&piece.text)).collect();
    let mut of = even(&shown, alone(&shown, &signs, size));
    messages(&shown, &signs, &mut of);
    let mut signs = signs.into_iter();
    let mut failure: Option<usize> = None;
    let mut weights = Vec::with_capacity(pieces.len());
    let (mut of, mut last) = (of.into_iter(), 0.0);
    for (at, piece) in pieces.iter().enumerate() {
        if !piece.text.is_empty() {
            last = of.next().unwrap_or_default();
            let heaviest = failure.and_then(|failure| weights.get(failure)).is_none_or(|most| *most <= last);
            if signs.next().is_some_and(|signs| signs.strong) && heaviest {
                failure = Some(at);
            }
        }
        weights.push(last);
    }
    Weighed { weights, failure }
}

/// What each line weighs by itself and by where it stands.
fn alone(pieces: &[&Piece<'_>], signs: &[Signs], size: u64) -> Vec<f64> {
    let flags = |of: &dyn Fn(usize, &Signs) -> bool| -> Vec<f64> {
        signs.iter().enumerate().map(|(at, signs)| f64::from(u8::from(of(at, signs)))).collect()
    };
    let red = flags(&|at, _| pieces.get(at).is_some_and(|piece| piece.red));
    let places = flags(&|_, signs| signs.place);
    let red_soon = before(&red, FADE_RED);
    let places_before = before(&places, FADE_PLACE);
    let places_behind = behind(&places, FADE_PLACE);
    let to_end = to_end(pieces, signs, size);
    let since_failure = since_failure(pieces, signs);
    let near = |all: &[f64], at: usize| all.get(at).copied().unwrap_or_default();
    let within = |bytes: Option<u64>, scale: f64| bytes.map_or(0.0, |bytes| 1.0 / square(1.0 + bytes as f64 / scale));
    let weight = |(at, signs): (usize, &Signs)| {
        let bears = |yes: bool, weight: f64| if yes { weight } else { 0.0 };
        bears(signs.frame, FRAME)
            + bears(signs.place, PLACE)
            + PLACE_NEAR * (near(&places_before, at) + near(&places_behind, at))
            + RED_SOON * near(&red_soon, at)
            + ENDING * within(to_end.get(at).copied().flatten(), ENDING_BYTES)
            + BEHIND_FAILURE * within(since_failure.get(at).copied().flatten(), BEHIND_BYTES)
    };
    signs.iter().enumerate().map(weight).collect()
}

fn square(x: f64) -> f64 {
    x * x
}

/// For each line, how many of the flagged ones come behind it, the farther the less.
fn before(flags: &[f64], fade: f64) -> Vec<f64> {
    let mut sums: Vec<f64> = behind(&flags.iter().rev().copied().collect::<Vec<_>>(), fade);
    sums.reverse();
    sums
}

/// For each line, how many of the flagged ones stand before it, the farther the less.
fn behind(flags: &[f64], fade: f64) -> Vec<f64> {
    let mut sum = 0.0;
    flags
        .iter()
        .map(|flag| {
            let here: f64 = sum;
            sum = (sum + flag) * fade;
            here.min(NEAR_MAX)
        })
        .collect()
}

/// Bytes from each line to the next exit marker behind it, or to the end of the output where there is none at all; none
/// for lines behind the last one: they are of what came after the failure.
fn to_end(pieces: &[&Piece<'_>], signs: &[Signs], size: u64) -> Vec<Option<u64>> {
    let mut end = if signs.iter().any(|signs| signs.exit) { None } else { Some(size) };
    let mut all: Vec<Option<u64>> = Vec::with_capacity(pieces.len());
    for (piece, signs) in pieces.iter().zip(signs).rev() {
        if signs.exit {
            end = Some(piece.end);
        }
        all.push(end.map(|end| end.saturating_sub(piece.end)));
    }
    all.reverse();
    all
}

/// Bytes from the last line that tells of a failure to each line.
fn since_failure(pieces: &[&Piece<'_>], signs: &[Signs]) -> Vec<Option<u64>> {
    let mut from = None;
    let since = |(piece, signs): (&&Piece<'_>, &Signs)| {
        if signs.strong {
            from = Some(piece.start);
        }
        from.map(|from: u64| piece.start.saturating_sub(from))
    };
    pieces.iter().zip(signs).map(since).collect()
}

/// Lets lines that belong together weigh alike.
fn even(pieces: &[&Piece<'_>], mut weights: Vec<f64>) -> Vec<f64> {
    let goes_on = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| pieces.get(before));
        before.is_some_and(|before| !before.text.ends_with('\n') && !before.text.ends_with("\\n"))
    };
    let blank = |at: usize| pieces.get(at).is_none_or(|piece| piece.text.trim().is_empty());
    let mut from = 0;
    for at in 0..=pieces.len() {
        if !blank(at) {
            continue;
        }
        if let Some(paragraph) = weights.get_mut(from..at).filter(|lines| lines.len() < PARAGRAPH_MAX) {
            let most = paragraph.iter().copied().fold(0.0, f64::max);
            paragraph.iter_mut().for_each(|weight| *weight += PARAGRAPH * (most - *weight));
        }
        from = at + 1;
    }
    let mut last = 0.0;
    for (at, (weight, piece)) in weights.iter_mut().zip(pieces).enumerate() {
        if goes_on(at) || piece.text.starts_with([' ', '\t']) && !piece.text.trim().is_empty() {
            *weight = weight.max(last * INDENTED);
        }
        last = *weight;
    }
    let near =
        |at: usize, by: isize| at.checked_add_signed(by).and_then(|at| weights.get(at)).copied().unwrap_or_default();
    let smooth = |at| (3.0 * near(at, 0) + 2.0 * (near(at, -1) + near(at, 1)) + near(at, -2) + near(at, 2)) / 9.0;
    let mut even: Vec<f64> = (0..weights.len()).map(smooth).collect();
    // A long line is in several pieces, and tells at its beginning what it is about.
    for at in (1..even.len()).rev().filter(|at| goes_on(*at)) {
        let rest = even.get(at).copied().unwrap_or_default();
        if let Some(before) = even.get_mut(at - 1) {
            *before = before.max(if goes_on(at - 1) { rest } else { rest * LINE_BEGINS });
        }
    }
    even
}

/// Lets a line that tells of a failure and stands at the head or the foot of a stack trace weigh as much as any line of
/// the trace: it is what the trace is of.
fn messages(pieces: &[&Piece<'_>], signs: &[Signs], weights: &mut [f64]) {
    let is_indented = |at: usize| pieces.get(at).is_some_and(|piece| piece.text.starts_with([' ', '\t']));
    let is_traced = |at: usize| is_indented(at) || signs.get(at).is_some_and(|signs| signs.frame);
    let of: Vec<(usize, f64)> = (0..weights.len())
        .filter(|at| signs.get(*at).is_some_and(|signs| signs.strong) && !is_traced(*at))
        .map(|at| {
            let above = (at.saturating_sub(PARAGRAPH_MAX)..at).rev().take_while(|at| is_traced(*at));
            let below = (at + 1..weights.len()).take(PARAGRAPH_MAX).take_while(|at| is_traced(*at));
            let heaviest = above.chain(below).filter_map(|at| weights.get(at).copied()).fold(0.0, f64::max);
            (at, heaviest)
        })
        .collect();
    for (at, least) in of {
        if let Some(weight) = weights.get_mut(at) {
            *weight = weight.max(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::pieces;
    use super::*;

    /// The line that weighs most.
    fn heaviest(raw: &str) -> String {
        let (pieces, _) = pieces(raw.as_bytes(), 0);
        let weights = weigh(&pieces, raw.len() as u64).weights;
        let most = (0..pieces.len()).max_by(|a, b| weights[*a].total_cmp(&weights[*b])).unwrap();
        pieces[most].text.trim().to_owned()
    }

    fn chatter(lines: usize) -> String {
        (0..lines).map(|n| format!("compiling module {n} of many\n")).collect()
    }

    #[test]
    fn without_any_sign_the_end_weighs_most() {
        let log = chatter(100);
        let (pieces, _) = pieces(log.as_bytes(), 0);
        let weights = weigh(&pieces, log.len() as u64).weights;
        assert!(weights[10] < weights[50] && weights[50] < weights[90], "{weights:?}");
    }

    #[test]
    fn what_stands_before_an_exit_marker_weighs_more_than_what_comes_after_it() {
        let log = format!("{}the cause\nexited with code 2\n{}", chatter(100), chatter(300));
        let (pieces, _) = pieces(log.as_bytes(), 0);
        let weights = weigh(&pieces, log.len() as u64).weights;
        assert!(weights[100] > 10.0 * weights[400], "{} {}", weights[100], weights[400]);
    }

    #[test]
    fn a_message_and_its_stack_trace_weigh_alike() {
        let log = format!(
            "{}\nerror: it broke\n    at f (src/a.x:10)\n    at g (src/b.x:20)\n\n{}",
            chatter(200),
            chatter(200)
        );
        let (pieces, _) = pieces(log.as_bytes(), 0);
        let weights = weigh(&pieces, log.len() as u64).weights;
        let (message, trace) = (weights[201], weights[203]);
        assert!(message > trace / 2.0 && message > 2.0 * weights[150] && trace > 2.0 * weights[150], "{weights:?}");
        assert!(["at f (src/a.x:10)", "error: it broke"].contains(&heaviest(&log).as_str()));
    }

    #[test]
    fn the_message_below_a_stack_trace_weighs_as_much_as_the_trace() {
        let frames: String = (0..20).map(|n| format!("  File \"src/a{n}.x\", line {n}, in f\n    g()\n")).collect();
        let log = format!("Traceback (most recent call first):\n{frames}x.OddError: no such thing\n</output>\n");
        let (pieces, _) = pieces(log.as_bytes(), 0);
        let weights = weigh(&pieces, log.len() as u64).weights;
        let most = weights.iter().copied().fold(0.0, f64::max);
        assert_eq!(weights[41], most, "{weights:?}");
    }

    #[test]
    fn a_long_line_weighs_most_at_its_beginning() {
        let log = format!("unknown kind 'x'. {}\n", "known: one, another; ".repeat(500));
        assert!(heaviest(&log).starts_with("unknown kind 'x'."));
    }

    #[test]
    fn of_equal_failures_the_latest_is_the_one_worth_a_look() {
        let log = "error: x\n".repeat(50) + &chatter(400);
        let (pieces, _) = pieces(log.as_bytes(), 0);
        let Weighed { weights, failure } = weigh(&pieces, log.len() as u64);
        let most = (0..50).map(|at| weights[at]).fold(0.0, f64::max);
        assert!(failure.is_some_and(|at| at < 50 && weights[at] == most), "{failure:?}");
        let fine = chatter(10);
        assert_eq!(weigh(&super::super::lines::pieces(fine.as_bytes(), 0).0, 1).failure, None);
    }

    #[test]
    fn states_that_were_written_over_weigh_like_what_stands_before_them() {
        let log = "error: x\n10%\r20%\r30%\ndone\n";
        let (pieces, _) = pieces(log.as_bytes(), 0);
        let weights = weigh(&pieces, log.len() as u64).weights;
        assert_eq!(weights.len(), pieces.len());
        assert_eq!(weights[0], weights[1]);
    }
}
