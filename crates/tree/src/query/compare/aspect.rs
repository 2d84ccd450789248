//! The aspect of a comparison: words to which the shown differences are limited.

use crate::search::ranked::WordStemmer;

pub(super) struct Aspect {
    stemmer: WordStemmer,
    stems: Vec<String>,
}

impl Aspect {
    pub(super) fn new(text: &str) -> Aspect {
        let stemmer = WordStemmer::default();
        let mut stems = stemmer.stem_text(text);
        stems.sort_unstable();
        stems.dedup();
        Aspect { stemmer, stems }
    }

    /// Returns the number of words of the aspect that occur in `text`, compared by the stems of
    /// `search/`.
    ///
    /// Every selection by aspect uses this count.
    pub(super) fn count_matches(&self, text: &str) -> usize {
        let found = self.stemmer.stem_text(text);
        self.stems.iter().filter(|stem| found.contains(stem)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_match_in_any_case_by_their_stems() {
        let aspect = Aspect::new("Section 3, risk");
        assert_eq!(aspect.count_matches("## SECTION 3: Risks"), 3);
        assert_eq!(aspect.count_matches("section 13"), 1);
        assert_eq!(aspect.count_matches("3.2 asterisk"), 1);
        assert_eq!(aspect.count_matches(""), 0);
    }
}
