//! Connections that have not presented the token yet.
//!
//! Any program on the machine can connect, so their number and their time are bounded. A full table
//! evicts its oldest connection rather than refuse the newest: a client sends its token at once,
//! while a silent connection only grows old.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub(super) struct Pending {
    table: Mutex<Table>,
    max: usize,
    token_timeout: Duration,
}

/// Connections by the order of their arrival.
#[derive(Default)]
struct Table {
    next: u64,
    /// Sends to evict a connection. Dropped unsent once the connection is authenticated or closed.
    evict: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Pending {
    /// Returns an empty table. `max` is at least 1.
    pub(super) fn new(max: usize, token_timeout: Duration) -> Arc<Pending> {
        Arc::new(Pending { table: Mutex::default(), max: max.max(1), token_timeout })
    }

    /// Adds a connection, and evicts the oldest one if the table is full.
    ///
    /// Returns the connection's entry, and a future that completes when the connection must be
    /// closed. The future never completes once the connection is authenticated.
    pub(super) fn add(self: &Arc<Pending>) -> (PendingEntry, impl Future<Output = ()> + use<>) {
        let (evict, evicted) = oneshot::channel();
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        table.evict.insert(id, evict);
        if table.evict.len() > self.max {
            table.evict_oldest();
        }
        drop(table);
        let evicted = timeout(self.token_timeout, evicted);
        let closed = async {
            if let Ok(Err(_)) = evicted.await {
                pending::<()>().await;
            }
        };
        (PendingEntry { pending: self.clone(), id }, closed)
    }

    /// Evicts the oldest connection. Returns false if there is none.
    pub(super) fn evict_oldest(&self) -> bool {
        self.table.lock().evict_oldest()
    }
}

impl Table {
    fn evict_oldest(&mut self) -> bool {
        let Some((_, evict)) = self.evict.pop_first() else { return false };
        // An error means that the connection is closing anyway.
        let _ = evict.send(());
        true
    }
}

/// A connection's entry in the table. Dropping it removes the entry.
pub(super) struct PendingEntry {
    pending: Arc<Pending>,
    id: u64,
}

impl PendingEntry {
    /// Removes the connection from the table, so that it may stay open.
    pub(super) fn authenticated(&self) {
        self.pending.table.lock().evict.remove(&self.id);
    }
}

impl Drop for PendingEntry {
    fn drop(&mut self) {
        self.authenticated();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    const NEVER: Duration = Duration::from_secs(3_600);

    /// Runs `test` on a runtime with timers.
    fn block_on(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    /// Returns true if `future` completes without waiting.
    async fn is_ready(future: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = future => true,
            () = std::future::ready(()) => false,
        }
    }

    #[test]
    fn a_full_table_evicts_the_oldest_connection() {
        block_on(async {
            let table = Pending::new(2, NEVER);
            let (_first, first_closed) = table.add();
            let (_second, second_closed) = table.add();
            let mut second_closed = pin!(second_closed);
            let (_third, third_closed) = table.add();
            assert!(is_ready(first_closed).await);
            assert!(!is_ready(&mut second_closed).await);
            assert!(table.evict_oldest());
            assert!(is_ready(second_closed).await);
            assert!(!is_ready(third_closed).await);
        });
    }

    #[test]
    fn an_authenticated_connection_is_neither_evicted_nor_timed_out() {
        block_on(async {
            let table = Pending::new(1, Duration::ZERO);
            let (client, client_closed) = table.add();
            client.authenticated();
            let (_silent, silent_closed) = table.add();
            assert!(table.evict_oldest() && !table.evict_oldest());
            silent_closed.await;
            assert!(!is_ready(client_closed).await);
        });
    }

    #[test]
    fn a_connection_without_a_token_is_closed_in_time() {
        block_on(async {
            let table = Pending::new(1, Duration::from_millis(1));
            let (_silent, closed) = table.add();
            closed.await;
        });
    }

    #[test]
    fn a_closed_connection_leaves_the_table() {
        let table = Pending::new(1, NEVER);
        block_on(async {
            for _ in 0..3 {
                let (entry, closed) = table.add();
                assert!(!is_ready(closed).await);
                drop(entry);
            }
        });
        assert!(table.table.lock().evict.is_empty());
    }
}
