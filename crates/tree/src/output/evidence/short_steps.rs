//! Short steps: outputs of unknown outcome that are shown on one line each, where not all outputs
//! fit.

use super::content::FrameContent;
use crate::analysis::excerpt::ShownLines;
use swarmletfs_base::model::Outcome;
use swarmletfs_base::text::clean::{TAG_LEN, one_line};

/// Maximum size of an output that is shown on one line, in bytes.
const STEP_MAX: u64 = 160;
/// Maximum part of the room for all such lines, in percent.
const ROOM_PERCENT: usize = 12;
/// Minimum size of such a line, in bytes; bounds the number of outputs that are read.
const LINE_MIN: usize = 16;

#[derive(Debug, Clone)]
pub(super) struct ShortStep {
    pub(super) number: usize,
    line: String,
}

/// Returns the lines of `steps` under a heading that ends in `tag`, or an empty string.
pub(super) fn block(steps: &[ShortStep], tag: &str) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let lines: String = steps.iter().map(|step| step.line.as_str()).collect();
    format!("\nShort steps ({}): {tag}\n{lines}", steps.len())
}

pub(super) fn block_len(steps: &[ShortStep]) -> usize {
    if steps.is_empty() { 0 } else { block(steps, "").len() + TAG_LEN }
}

impl FrameContent<'_> {
    /// Returns the steps to show on one line each in a part of `room` and at most `left` bytes,
    /// chosen shortest first, in display order.
    pub(super) fn short_steps(&self, room: usize, left: usize) -> Vec<ShortStep> {
        let limit = (room * ROOM_PERCENT / 100).min(left);
        let mut candidates: Vec<(u64, usize)> = self
            .sections
            .iter()
            .enumerate()
            .filter(|(_, section)| {
                section.outcome == Some(Outcome::Unknown)
                    && !section.is_running
                    && (1..=STEP_MAX).contains(&section.bytes)
                    && section.unreadable.is_none()
                    // Without its input, such an output says little.
                    && section.input.is_none()
            })
            .map(|(number, section)| (section.bytes, number))
            .collect();
        candidates.sort_unstable();
        let heading = "\nShort steps (): \n".len() + candidates.len().to_string().len() + TAG_LEN;
        let mut used = heading;
        let mut steps = Vec::new();
        for (_, number) in candidates.into_iter().take(limit / LINE_MIN) {
            // A line holds at least its path.
            if self.sections.get(number).is_none_or(|section| used + section.path.len() > limit) {
                break;
            }
            let Some(line) = self.short_line(number) else { continue };
            if used + line.len() > limit {
                break;
            }
            used += line.len();
            steps.push(ShortStep { number, line });
        }
        steps.sort_unstable_by_key(|step| step.number);
        steps
    }

    /// Returns the path and the text of a section on one line, or `None` if the text is not shown
    /// whole there.
    fn short_line(&self, number: usize) -> Option<String> {
        if let Some(line) = self.short_lines.borrow().get(&number) {
            return line.clone();
        }
        let section = self.sections.get(number)?;
        let excerpt = self.excerpt(number, STEP_MAX as usize, &mut ShownLines::default());
        let is_plain = excerpt.whole && excerpt.note.is_none() && excerpt.hidden == 0;
        let text = one_line(&excerpt.text, usize::MAX);
        let line = (is_plain && !text.is_empty()).then(|| format!("{}: {text}\n", section.path));
        self.short_lines.borrow_mut().insert(number, line.clone());
        line
    }
}
