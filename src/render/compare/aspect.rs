//! Words that narrow what is shown of a comparison: what is said of them, and nothing else.

use crate::search::ranked::WordStemmer;

/// The stems of the words of an aspect.
pub(super) struct Aspect {
    stemmer: WordStemmer,
    wanted: Vec<String>,
}

impl Aspect {
    /// The words in `text`, each once.
    pub(super) fn of(text: &str) -> Aspect {
        let stemmer = WordStemmer::default();
        let mut wanted = stemmer.stem_text(text);
        wanted.sort_unstable();
        wanted.dedup();
        Aspect { stemmer, wanted }
    }

    /// How many of the words `text` holds, by their stems as `search/` has them. The one place that decides it.
    pub(super) fn held(&self, text: &str) -> usize {
        let there = self.stemmer.stem_text(text);
        self.wanted.iter().filter(|word| there.contains(word)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_held_in_any_case_and_by_their_stems() {
        let aspect = Aspect::of("Section 3, risk");
        assert_eq!(aspect.held("## SECTION 3: Risks"), 3);
        assert_eq!(aspect.held("section 13"), 1);
        assert_eq!(aspect.held("3.2 asterisk"), 1);
        assert_eq!(aspect.held(""), 0);
    }
}
