//! What is found in the files of workers. It knows of views and files, not of what is shown to anybody.

pub mod regex;
