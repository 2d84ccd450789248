//! The program as a process: exit codes, messages, and the resulting mounts.

mod audit;
mod background;
mod colors;
mod completions;
mod discovery;
pub mod doctor;
mod ending;
mod expand;
mod export;
mod hook;
mod hook_codex;
mod hook_copilot;
mod log;
mod no_fuse;
mod paging;
pub mod printing;
pub mod program;
mod quiet;
mod record;
mod since;
mod store_completions;
mod top;
mod tree_commands;
mod usage;
mod validate;
mod wait;
