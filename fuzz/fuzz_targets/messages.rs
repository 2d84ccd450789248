//! What `swarmletfs expand` may read: what is put in fits the budget, and without it the text is as it was.
#![no_main]

mod swarm;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use swarmletfs::render::expand::InputFormat;
use swarmletfs::text::budget::Budget;
use swarmletfs::render::Renderer;
use swarmletfs::analysis::settings::Settings;

static RENDERER: LazyLock<Renderer> = LazyLock::new(|| Renderer::new(swarm::view(), Settings::default()));
const BUDGET: usize = 600;

fuzz_target!(|given: (u8, &[u8])| {
    let (which, text) = given;
    let form = [InputFormat::Text, InputFormat::OpenAi, InputFormat::Anthropic, InputFormat::LangChain][usize::from(which % 4)];
    let mut out = Vec::new();
    let told = RENDERER.expand(form, Budget::parse("600").ok(), text, &mut out);
    // Every byte of the text is there, in its order.
    let mut rest = out.iter();
    assert!(text.iter().all(|byte| rest.any(|other| other == byte)), "something is lost");
    // In JSON a character may take six bytes.
    assert!(out.len() <= text.len() + BUDGET * 6, "{} of {}", out.len(), text.len());
    if let Ok(told) = told
        && told.expanded + told.repeated + told.unavailable + told.without_room == 0
    {
        assert!(out == text);
    }
});
