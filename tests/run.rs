//! `swarmletfs run`: a command as a worker, from its start to its end.

mod access;
mod as_user;
mod changes;
mod each;
mod ends;
mod full_disk;
mod git;
mod identity;
mod interrupted;
mod live;
mod nested;
mod random;
mod recovery;
mod refusals;
mod set_id;
mod terminal;
pub mod workspace;
