//! What a test has not announced must not be logged: a warning, an error, the end of the process (R35).

/// What a line holds that tells of trouble: a level of the log, or the words of the standard library.
const TROUBLE: [&str; 6] =
    [" WARN ", " ERROR ", "panicked", "memory allocation of", "overflowed its stack", "fatal runtime error"];

/// The lines that tell of trouble and hold none of the `announced` texts.
pub fn unannounced<'a>(lines: impl Iterator<Item = &'a str>, announced: &[String]) -> Vec<String> {
    let is_trouble = |line: &&str| TROUBLE.iter().any(|words| line.contains(words));
    let is_announced = |line: &&str| announced.iter().any(|text| line.contains(text.as_str()));
    lines.filter(is_trouble).filter(|line| !is_announced(line)).map(str::to_owned).collect()
}
