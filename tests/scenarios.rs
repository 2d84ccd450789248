//! README.md and the pages of docs/scenarios: their commands and calls are run, and compared with
//! the output that they show.

mod page;

use page::Page;
#[cfg(feature = "mcp")]
use serde_json::Value;

use crate::needs_fuse;

/// Promise: Each command of README.md runs as printed, with what the ones before it made.
#[test]
fn commands_of_the_readme_run_as_printed() {
    needs_fuse!();
    Page::readme().run_in_one_shell();
}

#[test]
fn readme_is_short() {
    let lines = include_str!("../README.md").lines().count();
    assert!(lines <= 130, "README.md has {lines} lines");
}

/// Promise: The pages of docs/scenarios show what their commands print.
#[test]
fn commands_of_iterative_refinement_print_what_the_page_shows() {
    needs_fuse!();
    Page::read("iterative-refinement").run_commands();
}

#[test]
fn commands_of_code_analysis_print_what_the_page_shows() {
    needs_fuse!();
    Page::read("code-analysis").run_commands();
}

#[test]
fn commands_of_research_synthesis_print_what_the_page_shows() {
    needs_fuse!();
    Page::read("research-synthesis").run_commands();
}

/// Promise: The pages of docs/scenarios show what their calls by MCP return.
#[cfg(feature = "mcp")]
#[test]
fn calls_of_iterative_refinement_return_what_the_page_shows() {
    refine_iteratively(crate::mcp::roles);
}

#[cfg(feature = "mcp")]
#[test]
fn calls_of_code_analysis_return_what_the_page_shows() {
    analyze_code(crate::mcp::roles);
}

#[cfg(feature = "mcp")]
#[test]
fn calls_of_research_synthesis_return_what_the_page_shows() {
    synthesize_research(crate::mcp::roles);
}

/// Promise: The pages of docs/scenarios show what their calls by MCP return.
///
/// The supervisor and the workers are sessions of Claude Code, and workers run at once.
#[cfg(feature = "mcp")]
#[test]
#[ignore = "only in scripts/check --all"]
fn claude_code_sessions_of_iterative_refinement_return_what_the_page_shows() {
    refine_iteratively(crate::clients::play_with_claude_code);
}

#[cfg(feature = "mcp")]
#[test]
#[ignore = "only in scripts/check --all"]
fn claude_code_sessions_of_code_analysis_return_what_the_page_shows() {
    analyze_code(crate::clients::play_with_claude_code);
}

#[cfg(feature = "mcp")]
#[test]
#[ignore = "only in scripts/check --all"]
fn claude_code_sessions_of_research_synthesis_return_what_the_page_shows() {
    synthesize_research(crate::clients::play_with_claude_code);
}

/// Runs the calls of a page with `play`, as [`Page::run_calls`] does, and checks what is left.
#[cfg(feature = "mcp")]
fn refine_iteratively(play: impl Fn(Vec<Value>) -> Option<Vec<Value>>) {
    let Some(page) = Page::read("iterative-refinement").run_calls(play) else { return };
    let applied = page.file("project/median.py");
    assert_eq!(applied, "from statistics import median\n");
    assert!(page.file("swarm/supervisor/strategy.md").starts_with("median-v3 is applied"));
}

#[cfg(feature = "mcp")]
fn analyze_code(play: impl Fn(Vec<Value>) -> Option<Vec<Value>>) {
    let Some(page) = Page::read("code-analysis").run_calls(play) else { return };
    assert!(page.file("swarm/supervisor/plan.md").contains("api.py again (worker-api)"));
}

#[cfg(feature = "mcp")]
fn synthesize_research(play: impl Fn(Vec<Value>) -> Option<Vec<Value>>) {
    let Some(page) = Page::read("research-synthesis").run_calls(play) else { return };
    assert!(page.file("swarm/supervisor/synthesis.md").contains("(research-files)"));
}
