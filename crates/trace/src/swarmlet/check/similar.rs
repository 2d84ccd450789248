//! The known word that an unknown one was probably meant to be.

/// Minimum similarity of two words, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.65;
/// Maximum length of a word that is compared, in bytes.
const WORD_MAX: usize = 100;

/// Returns the member of `known` that is most similar to `word`, if any is similar.
pub(super) fn most_similar<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if word.len() > WORD_MAX {
        return None;
    }
    let word = folded(word);
    known
        .into_iter()
        .map(|known| (strsim::normalized_damerau_levenshtein(&word, &folded(known)), known))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// Returns a word without the differences between `startedAt`, `started-at` and `started_at`.
fn folded(word: &str) -> String {
    word.to_ascii_lowercase().replace(['_', '-', ' '], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_words_are_similar_and_other_words_are_not() {
        let known = ["status", "started_at", "owner_id", "exit_code", "success", "tags"];
        for (word, meant) in [
            ("stauts", Some("status")),
            ("state", Some("status")),
            ("startedAt", Some("started_at")),
            ("owner", Some("owner_id")),
            ("exitcode", Some("exit_code")),
            ("sucess", Some("success")),
            ("hostname", None),
            ("", None),
        ] {
            assert_eq!(most_similar(word, known), meant, "{word}");
        }
        assert_eq!(most_similar(&"status".repeat(100_000), known), None);
    }
}
