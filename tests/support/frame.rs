//! Check of the frame of an evidence.txt, to tell a whole one from a torn one.

/// Checks that `bytes` are one whole evidence.txt: all tagged lines carry one tag, and its size is
/// the stated one.
pub(crate) fn check_frame(bytes: &[u8]) -> Result<&str, String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let tag = first.rsplit(' ').next().unwrap_or_default();
    if !first.starts_with("--- Evidence for ") || tag.len() != 13 || !tag.starts_with('#') {
        return Err(format!("first line: {first}"));
    }
    if lines.next_back() != Some(format!("--- End Evidence --- {tag}").as_str())
        || !text.ends_with('\n')
    {
        return Err(format!("last line: {:?}", text.lines().last()));
    }
    let used = text.split("Used: ").nth(1).and_then(|rest| rest.split(' ').next());
    if used != Some(bytes.len().to_string().as_str()) {
        return Err(format!("{} bytes, and it says {used:?}", bytes.len()));
    }
    match text.lines().find(|line| line.contains('#') && !line.ends_with(tag)) {
        Some(other) => Err(format!("of another version than {tag}: {other}")),
        None => Ok(text),
    }
}
