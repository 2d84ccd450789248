//! Detection of warnings, errors and crashes in a log that the test did not announce (R35).

/// Marks of a problem in a line: log levels, and messages of the standard library.
const TROUBLE: [&str; 6] = [
    " WARN ",
    " ERROR ",
    "panicked",
    "memory allocation of",
    "overflowed its stack",
    "fatal runtime error",
];

/// Returns the lines that report a problem and contain none of the `announced` texts.
pub fn unannounced<'a>(lines: impl Iterator<Item = &'a str>, announced: &[String]) -> Vec<String> {
    let is_trouble = |line: &&str| TROUBLE.iter().any(|words| line.contains(words));
    let is_announced = |line: &&str| announced.iter().any(|text| line.contains(text.as_str()));
    lines.filter(is_trouble).filter(|line| !is_announced(line)).map(str::to_owned).collect()
}
