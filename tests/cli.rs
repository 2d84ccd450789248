//! The program as people and mount(8) type it: exit codes, sentences, and what is mounted afterwards.

mod background;
mod discovery;
mod doctor;
mod ending;
mod expand;
mod log;
mod look;
mod no_fuse;
pub mod printing;
pub mod program;
mod since;
mod usage;
mod wait;
