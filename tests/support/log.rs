//! What a test has not announced must not be logged: a warning, an error, a panic (R35).

/// The lines that tell of trouble and hold none of the `announced` texts.
pub fn unannounced<'a>(lines: impl Iterator<Item = &'a str>, announced: &[String]) -> Vec<String> {
    let is_trouble =
        |line: &&str| ["WARN", "ERROR", "panicked", "RUST_BACKTRACE"].iter().any(|word| line.contains(word));
    let is_announced = |line: &&str| announced.iter().any(|text| line.contains(text.as_str()));
    lines.filter(is_trouble).filter(|line| !is_announced(line)).map(str::to_owned).collect()
}
