//! Retention: what `gc` lists and removes, and what stays of a removed worker.

mod archives;
mod crashes;
mod decisions;
mod removed;
mod sessions;
mod store;
