//! `swarmletfs run`: a command as a worker, from its start to its end.

mod access;
mod as_user;
mod changes;
mod commits;
mod continued;
mod each;
mod ends;
mod git;
mod identity;
mod nested;
mod random;
mod recovery;
mod refusals;
mod terminal;
pub mod workspace;
