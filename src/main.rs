//! The `swarmletfs` command. All code is in [`swarmletfs::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    swarmletfs::cli::main()
}
