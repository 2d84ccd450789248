//! `swarmletfs serve`: serves the page for people, which follows the workers.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use tempfile::NamedTempFile;

use super::mcp::{address, check_loopback, served_tree, token};
use super::plan::read_prices;
use super::store_selection::StoreSelection;
use super::terminal::print_message;
use super::view_args::ViewArgs;
use crate::mcp::{HttpConfig, PageConfig, serve_page};
use crate::tree::Settings;

pub(super) const HELP: &str = "\
Serves the page of `swarmletfs report` at http://ADDR/, live: a change is seen within two seconds, \
and only what changed is sent. The tab counts who needs you, and the page can notify you, once, \
when a worker begins to wait or fails. It changes nothing. While no page is open, nothing is read.

Open the address that is printed: it ends in the token, which the browser keeps for this tab and \
does not send as a part of any address. The token is $SWARMLETFS_TOKEN; without it, a new one is \
generated. For another machine, use a tunnel: ssh -L 8751:127.0.0.1:8751 HOST.

Examples:
  swarmletfs serve --open
  swarmletfs serve --run 48 --http 127.0.0.1:9000

Exit code: 1 for a failure, 2 for a usage error; it serves until it is stopped.";

const PORT: u16 = 8751;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The loopback address to serve at [default: 127.0.0.1:8751]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    http: Option<SocketAddr>,

    /// Open the page in the browser
    #[arg(long)]
    open: bool,

    /// Compute costs that records do not state, from the prices in this JSON file; see
    /// `swarmletfs cost --help`
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    #[command(flatten)]
    view: ViewArgs,
}

/// Serves until the process is stopped.
///
/// # Errors
///
/// Fails if a store cannot be found or read, or if the address is in use.
pub(super) fn run(arguments: &ServeArgs) -> anyhow::Result<ExitCode> {
    let address = arguments.http.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
    check_loopback(address)?;
    let selection = StoreSelection::from_args(&arguments.view)?;
    let prices = read_prices(arguments.prices.as_deref())?;
    let settings = Settings { prices, ..Settings::default() };
    let page = PageConfig { title: arguments.view.title(None), options: arguments.view.options() };
    let trees = served_tree(selection, settings)?;
    let (token, made) = token()?;
    let is_opened = arguments.open;
    // It stays until the browser has read it.
    let mut redirect = None;
    let served = serve_page(trees, page, HttpConfig { address, token }, |address| {
        let made = made.map(|made| format!("#token={made}")).unwrap_or_default();
        let url = format!("http://{address}/{made}");
        print_message(&format!("serving at {url}"));
        if is_opened {
            match open(&url) {
                Ok(file) => redirect = Some(file),
                Err(error) => print_message(&format!("{error:#}")),
            }
        }
    });
    served.with_context(|| format!("cannot serve at {address}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens an address in the browser of the user. Others can read the arguments of processes, so the
/// browser gets the path of a file that leads to the address, and that nobody else can read.
///
/// # Errors
///
/// There is no program for that, or the file cannot be written.
fn open(url: &str) -> anyhow::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("swarmletfs-").suffix(".html").tempfile()?;
    writeln!(file, "<!doctype html><meta http-equiv=refresh content=\"0; url={url}\">")?;
    let mut command = Command::new("xdg-open");
    command.arg(file.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(_) => Ok(file),
        Err(error) => bail!("cannot open a browser: {error}; open the address above yourself"),
    }
}
