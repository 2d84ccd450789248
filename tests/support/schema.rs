//! Validation of every generated index.json that a test reads against docs/index.schema.json.

use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

static WORKER: LazyLock<Validator> = LazyLock::new(|| validator("worker"));
static SWARM: LazyLock<Validator> = LazyLock::new(|| validator("swarm"));

/// Returns the validator of one definition of the schema.
fn validator(shape: &str) -> Validator {
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/index.schema.json"))
        .unwrap();
    let schema: Value = serde_json::from_slice(&text).unwrap();
    let one = json!({"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": format!("#/$defs/{shape}")});
    jsonschema::validator_for(&one).unwrap()
}

/// Returns the schema violations of the index.json of a worker, or of a run or the swarm.
pub fn faults(of_worker: bool, index: &Value) -> Vec<String> {
    let validator = if of_worker { &*WORKER } else { &*SWARM };
    validator
        .iter_errors(index)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// Fails if `path` is a generated index.json and `bytes` violate the schema.
pub fn check(path: &[u8], bytes: &[u8]) {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    let of_worker = match parts.as_slice() {
        [b"index.json"] | [b"workers", b"index.json"] | [b"runs", _, b"index.json"] => false,
        [b"workers", _, b"index.json"] | [b"runs", _, b"workers", _, b"index.json"] => true,
        _ => return,
    };
    let index = serde_json::from_slice(bytes).unwrap();
    let faults = faults(of_worker, &index);
    assert!(faults.is_empty(), "{}: {faults:#?}\n{index:#}", path.escape_ascii());
}
