//! Colors of answers, as ls, grep and git have them.
//!
//! They are on at a terminal, unless a variable such as `$NO_COLOR` or `$CLICOLOR_FORCE` says
//! otherwise. Text of workers is sanitized before it is colored, so it has no escapes of its own.

use std::fmt::Display;
use std::io;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};

pub(super) const FOLDER: Style = AnsiColor::Blue.on_default().bold();
pub(super) const LINK: Style = AnsiColor::Cyan.on_default().bold();
pub(super) const FAILED: Style = AnsiColor::Red.on_default();
pub(super) const PATH: Style = AnsiColor::Magenta.on_default();
pub(super) const NUMBER: Style = AnsiColor::Green.on_default();
pub(super) const SEPARATOR: Style = AnsiColor::Cyan.on_default();
pub(super) const MATCH: Style = AnsiColor::Red.on_default().bold();

/// The option that turns colors on and off.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct ColorArgs {
    /// When to use colors; `auto` is on a terminal, unless $NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: ColorArg,
}

/// When to use colors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ColorArg {
    #[default]
    Auto,
    Always,
    Never,
}

impl ColorArgs {
    pub(super) fn are_on(self) -> bool {
        match self.color {
            ColorArg::Always => true,
            ColorArg::Never => false,
            ColorArg::Auto => AutoStream::choice(&io::stdout()) != ColorChoice::Never,
        }
    }
}

pub(super) fn painted(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}
