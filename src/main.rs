//! The `swarmletfs` command: parse, run, exit code. Everything else is in [`swarmletfs::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    swarmletfs::cli::main()
}
