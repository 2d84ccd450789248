//! What a release publishes: versions, and the Rust version that is promised.

use std::process::Command;

use serde_json::Value;

/// Returns what Cargo knows about all packages of the workspace and what they use.
fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn packages(metadata: &Value) -> &[Value] {
    metadata["packages"].as_array().unwrap()
}

/// Returns a Rust version as numbers, of which it has two or three.
fn rust_version(package: &Value) -> Option<[u32; 3]> {
    let mut numbers =
        package["rust_version"].as_str()?.split('.').map(|part| part.parse().unwrap());
    Some(std::array::from_fn(|_| numbers.next().unwrap_or(0)))
}

#[test]
fn the_crate_and_the_python_package_have_one_version() {
    let metadata = metadata();
    let package =
        |name| packages(&metadata).iter().find(|package| package["name"] == name).unwrap();
    let python = package("swarmletfs-python");
    assert_eq!(package("swarmletfs")["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(python["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(python["rust_version"], package("swarmletfs")["rust_version"]);
    let uses = python["dependencies"].as_array().unwrap();
    let used = uses.iter().find(|used| used["name"] == "swarmletfs").unwrap();
    assert_eq!(used["req"], concat!("^", env!("CARGO_PKG_VERSION")));
}

#[test]
fn no_dependency_needs_a_newer_rust_than_is_promised() {
    let metadata = metadata();
    let own = packages(&metadata).iter().find(|package| package["name"] == "swarmletfs").unwrap();
    let promised = rust_version(own).unwrap();
    for package in packages(&metadata) {
        assert!(rust_version(package) <= Some(promised), "{}", package["id"]);
    }
    let [major, minor, _] = promised;
    for document in ["README.md", "CONTRIBUTING.md", "src/lib.rs"] {
        let path = format!("{}/{document}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("{major}.{minor}")), "{document} states another version");
    }
}
