//! `swarmletfs run`: a command as a worker, from its start to its end.

mod access;
mod changes;
mod each;
mod ends;
mod random;
mod recovery;
mod refusals;
mod workspace;
