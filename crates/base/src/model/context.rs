//! The use of a model's context by a conversation.

use serde::{Deserialize, Serialize};

/// Maximum number of requests that are kept, and of compactions whose times are.
const KEPT_MAX: usize = 256;

/// The sizes of the requests to a model, and the times at which the conversation was replaced by a
/// shorter one. Times are in milliseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ContextUse {
    /// Times and tokens of requests in their order. Of a long conversation, each is the largest of
    /// several.
    pub requests: Vec<(i64, u64)>,
    /// Number of requests that the last one stands for.
    pending: u32,
    /// Number of requests that each stands for; 0 counts as 1.
    stride: u32,
    /// The largest number of tokens that a request gave to the model; 0 if none is known.
    pub peak: u64,
    /// Number of times that a shorter conversation replaced it.
    pub compactions: u64,
    pub compacted_at: Vec<i64>,
}

impl ContextUse {
    /// Adds a request; `at` is its time. A record may repeat the last one.
    pub fn add_request(&mut self, at: Option<i64>, tokens: u64) {
        self.peak = self.peak.max(tokens);
        let Some(at) = at.filter(|_| tokens > 0) else { return };
        let stride = self.stride.max(1);
        match self.requests.last_mut() {
            Some((last, known)) if *last == at || self.pending < stride => {
                let is_new = *last != at;
                *last = at;
                *known = tokens.max(if is_new || stride > 1 { *known } else { 0 });
                self.pending += u32::from(is_new);
            }
            _ => {
                self.requests.push((at, tokens));
                self.pending = 1;
            }
        }
        if self.requests.len() > KEPT_MAX {
            let pairs = self.requests.chunks(2);
            let larger = pairs.filter_map(|pair| pair.iter().max_by_key(|kept| kept.1).copied());
            self.requests = larger.collect();
            self.stride = stride.saturating_mul(2);
        }
    }

    /// Adds a compaction; `at` is its time.
    pub fn add_compaction(&mut self, at: Option<i64>) {
        self.compactions += 1;
        self.compacted_at.extend(at.filter(|_| self.compacted_at.len() < KEPT_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_conversation_keeps_few_requests_and_the_largest_of_them() {
        let mut context = ContextUse::default();
        for at in 0..100_000 {
            context.add_request(Some(at), if at == 70_001 { 9_999 } else { 10 + at as u64 % 7 });
            // Records of one message repeat its tokens.
            context.add_request(Some(at), 10);
        }
        assert!(context.requests.len() <= KEPT_MAX && context.requests.len() > KEPT_MAX / 4);
        assert_eq!(context.peak, 9_999);
        assert!(context.requests.iter().any(|(_, tokens)| *tokens == 9_999));
        assert!(context.requests.is_sorted_by_key(|(at, _)| *at));
        context.add_request(None, 20_000);
        context.add_compaction(Some(5));
        context.add_compaction(None);
        assert_eq!((context.peak, context.compactions), (20_000, 2));
        assert_eq!(context.compacted_at, [5]);
    }
}
