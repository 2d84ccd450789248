//! Recording is safe against failures (R43): failing system calls, kills, full disks, and many
//! recorders at once. Mounted readers meet whole changes only.

mod concurrency;
mod full_disk;
mod kills;
mod model;
pub mod store;
mod system_calls;
mod visible;
