//! The Debian package, in a clean Debian root: installed, used and removed, with and without
//! systemd. Nothing outside a namespace changes.

mod clean_root;
mod containers;
mod contents;
mod installed;
mod systemd;
