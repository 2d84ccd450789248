//! Arbitrary input of `swarmletfs expand`: insertions fit the budget, and all other text is
//! unchanged.
#![no_main]

mod swarm;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use swarmletfs_tree::render::expand::InputFormat;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_tree::render::Renderer;
use swarmletfs_tree::analysis::settings::Settings;

static RENDERER: LazyLock<Renderer> = LazyLock::new(|| Renderer::new(swarm::view(), Settings::default()));
const BUDGET: usize = 600;

fuzz_target!(|input: (u8, &[u8])| {
    let (selector, text) = input;
    let format = [InputFormat::Text, InputFormat::OpenAi, InputFormat::Anthropic, InputFormat::LangChain][usize::from(selector % 4)];
    let mut out = Vec::new();
    let result = RENDERER.expand(format, Budget::parse("600").ok(), text, &mut out);
    // The output contains every byte of the text, in order.
    let mut rest = out.iter();
    assert!(text.iter().all(|byte| rest.any(|other| other == byte)), "the output misses a byte of the text");
    // A character takes up to six bytes in JSON.
    assert!(out.len() <= text.len() + BUDGET * 6, "{} bytes of output for {} bytes of text", out.len(), text.len());
    if let Ok(stats) = result
        && stats.expanded + stats.repeated + stats.unavailable + stats.without_room == 0
    {
        assert!(out == text, "the output differs although no marker was found");
    }
});
