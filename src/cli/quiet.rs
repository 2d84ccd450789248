//! The option that silences informational messages of commands that read.

use clap::Args;

use super::terminal::print_message;

/// Silences messages that only inform. Errors, warnings and answers are printed in any case.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct QuietArg {
    /// Print no messages that only inform, as the one that names the store
    #[arg(long, short)]
    quiet: bool,
}

impl QuietArg {
    /// Returns the argument of a command that decides by another option.
    pub(super) fn new(quiet: bool) -> QuietArg {
        QuietArg { quiet }
    }

    pub(super) fn is_set(self) -> bool {
        self.quiet
    }

    /// Prints a message on stderr that only informs, unless the user wants none.
    pub(super) fn inform(self, text: &str) {
        if !self.quiet {
            print_message(text);
        }
    }
}
