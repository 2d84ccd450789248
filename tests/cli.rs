//! The program as people and mount(8) type it: exit codes, sentences, and what is mounted afterwards.

mod background;
mod discovery;
mod ending;
mod no_fuse;
mod printing;
pub mod program;
mod usage;
