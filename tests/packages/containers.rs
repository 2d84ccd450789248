//! The Dockerfiles.
