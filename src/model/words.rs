//! What many workers say alike, held in memory once.

use std::collections::HashSet;
use std::sync::Arc;

/// Something short that many workers say alike.
pub type Word = Arc<str>;

/// Words that were said so far.
#[derive(Default)]
pub struct Words(HashSet<Word>);

impl Words {
    /// The same word as it was said before, if it was.
    pub fn share(&mut self, word: Word) -> Word {
        match self.0.get(&word) {
            Some(before) => before.clone(),
            None => {
                self.0.insert(word.clone());
                word
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_workers_say_alike_is_held_once() {
        let mut words = Words::default();
        let [one, again, other] = ["1", "1", "2"].map(|said| words.share(said.into()));
        assert!(Arc::ptr_eq(&one, &again));
        assert_eq!([&*one, &*other], ["1", "2"]);
    }
}
