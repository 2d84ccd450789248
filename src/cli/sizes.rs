//! Sizes in options, such as `--audit-max` and `--spool-max`.

/// Parses a size in bytes, optionally with k, M or G. `K`, `kB` and `KB` stand for `k`, `MB` for
/// `M`, and `GB` for `G`.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['k', 'K', 'M', 'G', 'B']);
    let factor = match text.get(digits.len()..) {
        Some("") => 1,
        Some("k" | "K" | "kB" | "KB") => 1 << 10,
        Some("M" | "MB") => 1 << 20,
        Some("G" | "GB") => 1_u64 << 30,
        _ => return Err("expected bytes, optionally with k, M or G".into()),
    };
    let size = digits.parse::<u64>().ok().and_then(|size| size.checked_mul(factor));
    size.filter(|size| *size > 0).ok_or_else(|| "expected bytes, optionally with k, M or G".into())
}
