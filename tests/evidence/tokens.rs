//! Budgets in tokens: the limit holds for any text, as counted by the tokenizer itself.

use super::*;
use crate::needs_fuse;
use crate::support::mount::Mount;

/// Returns the number of tokens in a text.
fn tokens(text: &str) -> usize {
    bpe_openai::o200k_base().count(text)
}

/// Outputs with more and with fewer bytes per token than usual.
fn shapes() -> Vec<String> {
    let lines =
        |line: &dyn Fn(usize) -> String| (0..400).map(|n| line(n) + "\n").collect::<String>();
    vec![
        lines(&|n| {
            format!(
                "2026-01-20 10:00:{:02} INFO {:x} worker is going on with what it does",
                n % 60,
                n * 7_919
            )
        }),
        format!("Error: {}", "a1b2c3d4e5f60718293a4b5c6d7e8f90".repeat(500)),
        lines(&|n| format!("{n}行目、漢字と仮名のまじった出力の一行です。")),
        lines(&|n| format!("{}{n}", " ".repeat(200))) + "Error: spaces",
        lines(&|n| format!("{} failed", "🦀".repeat(1 + n % 30))),
        lines(&|n| "word and ".repeat(1 + n % 9)),
    ]
}

/// Checks that a text is within `budget` tokens and states its use correctly if it has a frame.
fn hold(text: &str, budget: usize) {
    let used = tokens(text);
    assert!(used <= budget, "{used} tokens at {budget}: {text}");
    if has_frame(text) {
        let budget_line = format!("\nBudget: {budget} tok | Used: {used} tok | ");
        assert!(text.contains(&budget_line), "{budget_line:?} is not in {text}");
    }
}

fn token_evidence(tree: &Tree, folder: &str, budget: usize) -> String {
    see(tree, format!("{folder}evidence.{budget}tok.txt")).unwrap().text().to_owned()
}

/// Promise: A budget in tokens is an upper bound in tokens.
#[test]
fn token_budget_is_an_upper_bound() {
    for output in shapes() {
        let store = worker_with([output.as_str(), "Error: it broke\n", "plain\n"]);
        let tree = store.tree();
        for budget in (0..150).step_by(7).chain([200, 333, 700, 2_000, 5_000]) {
            hold(&token_evidence(&tree, "workers/w/", budget), budget);
            hold(&token_evidence(&tree, "", budget), budget);
        }
    }
}

/// Promise: A token budget is used up if the text is longer, and shows all of the text otherwise.
#[test]
fn token_budget_is_used_or_shows_everything() {
    for output in shapes() {
        let store = worker_with([output.as_str()]);
        let text = token_evidence(&store.tree(), "workers/w/", 2_000);
        assert!(tokens(&text) > 1_800, "{} tokens: {text}", tokens(&text));
        let all = token_evidence(&store.tree(), "workers/w/", 1_000_000);
        assert!(all.contains("| Whole: 1 | Cut: 0 | Listed: 0\n"), "{all}");
        hold(&all, 1_000_000);
    }
}

#[test]
fn equal_token_budgets_give_equal_bytes() {
    let store = worker_with(shapes());
    assert_eq!(
        token_evidence(&store.tree(), "workers/w/", 3_000),
        token_evidence(&store.tree(), "workers/w/", 3_000)
    );
}

#[test]
fn mount_with_a_token_budget_respects_it() {
    needs_fuse!();
    let store = worker_with(shapes());
    let mount = Mount::with(&store.path(), &["--budget", "900tok"]);
    for folder in ["workers/w/", ""] {
        let text = mount.read(&format!("{folder}evidence.txt"));
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("\nBudget: 900 tok | "), "{text}");
        hold(&text, 900);
    }
}
