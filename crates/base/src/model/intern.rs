//! Interned strings: equal strings of many workers share one allocation.

use std::collections::HashSet;
use std::sync::Arc;

/// A short string that many workers may share.
pub type SharedStr = Arc<str>;

#[derive(Default)]
pub struct Interner(HashSet<SharedStr>);

impl Interner {
    pub fn intern(&mut self, text: SharedStr) -> SharedStr {
        match self.0.get(&text) {
            Some(known) => known.clone(),
            None => {
                self.0.insert(text.clone());
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_share_one_allocation() {
        let mut interner = Interner::default();
        let [one, again, other] = ["1", "1", "2"].map(|said| interner.intern(said.into()));
        assert!(Arc::ptr_eq(&one, &again));
        assert_eq!([&*one, &*other], ["1", "2"]);
    }
}
