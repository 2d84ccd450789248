//! Tells the program which source it was made from: what one version keeps for the next start, another must not believe.

use std::path::{Path, PathBuf};
use std::{fs, io};

fn main() -> io::Result<()> {
    let mut hash = blake3::Hasher::new();
    let mut files = Vec::new();
    find(Path::new("src"), &mut files)?;
    files.push("Cargo.lock".into());
    files.sort();
    for file in files {
        // Cargo.lock is not part of a published crate.
        let Ok(bytes) = fs::read(&file) else { continue };
        hash.update(blake3::hash(&bytes).as_bytes());
        println!("cargo::rerun-if-changed={}", file.display());
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-env=SWARMLETFS_SOURCE={}", hash.finalize().to_hex());
    Ok(())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { find(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
