//! Content written by a worker, passed to each parser it can reach. Shared by the tests and the
//! fuzz target.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use swarmletfs_base::name::{Name, RelPath};
use swarmletfs_base::store::Memory;
use swarmletfs_base::text::budget::Budget;
use swarmletfs_trace::ClaudeCode;
use swarmletfs_tree::analysis::settings::Settings;
use swarmletfs_tree::catalog::{Freshness, Source};
use swarmletfs_tree::query;
use swarmletfs_tree::query::grep::{GrepOptions, GrepQuery};
use swarmletfs_tree::render::Renderer;
use swarmletfs_tree::render::expand::InputFormat;
use swarmletfs_tree::route::{Document, Group, Report, Scope};
use swarmletfs_tree::view::{Filter, View};

/// Way in which content reaches a parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As a tool's output: JSON, Python dictionaries, logs, terminal escapes.
    Output,
    /// As metadata.json.
    Metadata,
    /// As the store's index.json.
    Index,
    /// As thread.jsonl and metrics.jsonl.
    Lines,
    /// As a line of a transcript of Claude Code.
    Transcript,
    /// As the JSON strings of times, ids and words.
    Words,
    /// As a worker's final words.
    Result,
    /// As text whose markers are expanded, and as lists of messages.
    Text,
}

/// All ways.
pub const WAYS: [Way; 8] = [
    Way::Output,
    Way::Metadata,
    Way::Index,
    Way::Lines,
    Way::Transcript,
    Way::Words,
    Way::Result,
    Way::Text,
];

/// Time limit for the pages of a worker with empty content.
const FIXED: Duration = Duration::from_millis(100);
/// Additional time limit for each [`PART`] of content.
const EACH: Duration = Duration::from_millis(50);
/// Unit of content for the time limit, in bytes.
const PART: usize = 64 << 10;
/// Size of an expanded text's evidence, in bytes.
const EXPANDED: usize = 600;

/// Returns the time limit for content of `length` bytes.
pub fn allowed(length: usize) -> Duration {
    FIXED + EACH * u32::try_from(length.div_ceil(PART)).unwrap_or(u32::MAX)
}

/// Returns the CPU time of this thread, so that other load does not count.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Renders each page that the content can appear in. Returns the name of each page with its CPU
/// time.
pub fn read(way: Way, content: &[u8]) -> Vec<(&'static str, Duration)> {
    let renderer = renderer(way, content);
    let mut took = Vec::new();
    let mut timed = |page: &'static str, make: &dyn Fn()| {
        let begun = cpu_time();
        make();
        took.push((page, cpu_time() - begun));
    };
    if way == Way::Text {
        for form in
            [InputFormat::Text, InputFormat::OpenAi, InputFormat::Anthropic, InputFormat::LangChain]
        {
            timed("expand", &|| expand(&renderer, form, content));
        }
        return took;
    }
    let worker = Name::new("w").unwrap();
    for (name, report) in Report::LISTED {
        for document in
            [Document::Worker(worker.clone(), report), Document::Group(Group::Swarm, report)]
        {
            timed(name, &|| {
                let state = renderer.state(&document).unwrap();
                assert!(!renderer.render(state).unwrap().bytes.is_empty(), "{name}");
            });
        }
    }
    let query =
        GrepQuery { options: GrepOptions::default(), regex: "err(or)?".into(), under: None };
    timed("grep", &|| {
        drop(query::run(renderer.analyzer(), &Scope::Worker(worker.clone()), &query).unwrap())
    });
    took
}

/// Returns a renderer over a worker `w` with this content and another worker.
fn renderer(way: Way, content: &[u8]) -> Renderer {
    let memory = Memory::new();
    let write = |path: &str, bytes: &[u8]| memory.write(&RelPath::parse(path).unwrap(), bytes);
    if way == Way::Transcript {
        let line = "{\"type\":\"user\",\"uuid\":\"1\",\"message\":{\"content\":\"the task\"}}\n";
        write("projects/p/w.jsonl", &[line.as_bytes(), content, b"\n"].concat());
        return over(
            Source::from_store(Arc::new(memory), None)
                .with_format(Box::new(ClaudeCode::transcripts()))
                .with_stale_after(Duration::MAX),
        );
    }
    let text = || serde_json::to_string(&String::from_utf8_lossy(content)).unwrap();
    let plain = "{\"status\":\"completed\",\"owner_id\":\"A\"}";
    write("workers/other/metadata.json", plain.as_bytes());
    write("workers/w/metadata.json", plain.as_bytes());
    write("workers/w/tool_calls/001_sh.txt", b"{\"exit_code\": 1}");
    match way {
        Way::Output => write("workers/w/tool_calls/002_sh.txt", content),
        Way::Metadata => write("workers/w/metadata.json", content),
        Way::Index => write("workers/index.json", content),
        Way::Lines => {
            write("workers/w/thread.jsonl", content);
            write("workers/w/metrics.jsonl", content);
        }
        Way::Words => {
            let words = [
                "created_at",
                "started_at",
                "finished_at",
                "status",
                "task",
                "error",
                "run_id",
                "owner_id",
            ];
            let fields: Vec<String> =
                words.iter().map(|word| format!("\"{word}\":{}", text())).collect();
            write("workers/w/metadata.json", format!("{{{}}}", fields.join(",")).as_bytes());
            let call = format!("{{\"name\":\"sh\",\"args\":{}}}", text());
            let line = format!(
                "{{\"role\":\"assistant\",\"content\":{},\"tool_calls\":[{call}]}}\n",
                text()
            );
            write("workers/w/thread.jsonl", line.as_bytes());
        }
        Way::Result => {
            write("workers/w/result.txt", content);
            write("workers/w/task.txt", content);
        }
        Way::Transcript | Way::Text => {}
    }
    over(Source::from_store(Arc::new(memory), None))
}

fn over(source: Source) -> Renderer {
    let never = Duration::from_secs(3_600);
    let freshness = Freshness { unfinished: never, finished: never };
    Renderer::new(
        View::new(vec![source], freshness, Filter::default()).unwrap(),
        Settings::default(),
    )
}

fn expand(renderer: &Renderer, form: InputFormat, text: &[u8]) {
    let mut out = Vec::new();
    // Text that is not a list of messages passes through unchanged.
    let _ = renderer.expand(form, Budget::parse("600").ok(), text, &mut out);
    let mut rest = out.iter();
    assert!(text.iter().all(|byte| rest.any(|other| other == byte)), "a part of the text is lost");
    // In JSON a character may take six bytes.
    assert!(out.len() <= text.len() + EXPANDED * 6, "{} of {}", out.len(), text.len());
}
