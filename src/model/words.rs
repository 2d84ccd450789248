//! What many workers say alike, held in memory once.

use std::collections::HashSet;
use std::sync::Arc;

use super::Worker;

/// Something short that many workers say alike.
pub type Word = Arc<str>;

/// Words that were said so far.
#[derive(Default)]
pub struct Words(HashSet<Word>);

impl Words {
    /// Has a worker hold the words that were said before instead of its own, and no room for more.
    pub fn share(&mut self, worker: &mut Worker) {
        worker.tags.shrink_to_fit();
        for word in said(worker) {
            match self.0.get(word) {
                Some(before) => *word = before.clone(),
                None => drop(self.0.insert(word.clone())),
            }
        }
    }
}

fn said(worker: &mut Worker) -> impl Iterator<Item = &mut Word> {
    let Worker { owner, run, job, parent, status_source, task_type, tags, model, cwd, .. } = worker;
    let owner = owner.as_mut().map(|owner| &mut owner.0);
    let fields = [run, job, parent, status_source, task_type, model, cwd].map(Option::as_mut);
    owner.into_iter().chain(fields.into_iter().flatten()).chain(tags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Owner;
    use crate::name::{Name, RelPath};

    #[test]
    fn what_two_workers_say_alike_is_held_once() {
        let worker = |id: &str, run: &str| Worker {
            owner: Some(Owner("7".into())),
            run: Some(run.into()),
            tags: vec!["night".into(), run.into()],
            ..Worker::named(Name::new(id).unwrap(), RelPath::parse(id).unwrap())
        };
        let (mut words, mut a, mut b) = (Words::default(), worker("a", "1"), worker("b", "2"));
        a.tags.reserve(100);
        [&mut a, &mut b].into_iter().for_each(|worker| words.share(worker));
        assert_eq!([&a, &b], [&worker("a", "1"), &worker("b", "2")]);
        assert!(a.tags.capacity() < 100);
        let held = |worker: &Worker| {
            let owner = worker.owner.as_ref().map(|owner| &owner.0);
            [owner, worker.run.as_ref(), worker.tags.first(), worker.tags.last()].map(|word| word.unwrap().as_ptr())
        };
        let [[owner, one, tag, last], of_b] = [&a, &b].map(held);
        assert_eq!(one, last);
        assert_eq!([owner, tag], [of_b[0], of_b[2]]);
        assert_ne!(one, of_b[1]);
    }
}
