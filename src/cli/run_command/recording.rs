//! The content of a recording: the output, or its head and tail, and lines of our own.

use std::collections::VecDeque;

use super::Sink;
use swarmletfs_base::split::Split;

/// Maximum size of the tail that is kept in memory, in bytes.
const TAIL_MAX: u64 = 16 << 20;

/// Passes output to a sink, except for the middle of an output that exceeds the limit.
///
/// After the first error of the sink nothing more is written to it.
pub(super) struct Recording<'a> {
    sink: &'a mut dyn Sink,
    error: Option<anyhow::Error>,
    /// Bytes received, including omitted ones.
    seen: u64,
    /// Bytes of output that were passed on before the tail.
    head: u64,
    limits: Option<SizeLimits>,
    tail: VecDeque<u8>,
    /// True if the last byte received ends a line, and at the start.
    ends_line: bool,
}

#[derive(Debug, Clone, Copy)]
struct SizeLimits {
    head: u64,
    tail: usize,
}

impl SizeLimits {
    fn new(max_bytes: u64) -> SizeLimits {
        let tail = (max_bytes / 2).min(TAIL_MAX);
        // At most TAIL_MAX, which fits any usize.
        SizeLimits { head: max_bytes - tail, tail: usize::try_from(tail).unwrap_or(0) }
    }
}

impl<'a> Recording<'a> {
    pub(super) fn new(sink: &'a mut dyn Sink, max_bytes: Option<u64>) -> Recording<'a> {
        Recording {
            sink,
            error: None,
            seen: 0,
            head: 0,
            limits: max_bytes.map(SizeLimits::new),
            tail: VecDeque::new(),
            ends_line: true,
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.ends_line = *last == b'\n';
        self.seen += bytes.len() as u64;
        let Some(limits) = self.limits else {
            self.pass_on(bytes);
            self.head = self.seen;
            return;
        };
        let room = usize::try_from(limits.head - self.head).unwrap_or(usize::MAX);
        let (head, rest) = bytes.split_at_most(room);
        self.pass_on(head);
        self.head += head.len() as u64;
        let (_, rest) = rest.split_at_known(rest.len().saturating_sub(limits.tail));
        let excess = (self.tail.len() + rest.len()).saturating_sub(limits.tail);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Writes the tail, with a line before it that counts the omitted bytes.
    ///
    /// The line has the form of the omissions in evidence.
    pub(super) fn write_tail(&mut self) {
        let tail = std::mem::take(&mut self.tail);
        let omitted = self.seen - self.head - tail.len() as u64;
        if omitted > 0 {
            let (first, last) = (self.head, self.head + omitted - 1);
            let marker = format!("\n[... {omitted} B omitted: bytes {first}-{last} ...]\n");
            self.pass_on(marker.as_bytes());
        }
        let (front, back) = tail.as_slices();
        self.pass_on(front);
        self.pass_on(back);
        self.head = self.seen - omitted;
    }

    /// Records a line of our own after the tail.
    pub(super) fn write_line(&mut self, line: &str) {
        let separator = if self.ends_line { "" } else { "\n" };
        self.pass_on(format!("{separator}{line}\n").as_bytes());
        self.ends_line = true;
    }

    pub(super) fn into_error(self) -> Option<anyhow::Error> {
        self.error
    }

    fn pass_on(&mut self, bytes: &[u8]) {
        if self.error.is_none() && !bytes.is_empty() {
            self.error = self.sink.write(bytes).err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sink for Vec<u8> {
        fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
            self.extend_from_slice(bytes);
            Ok(())
        }
    }

    fn recorded(output: &[u8], max_bytes: u64, chunk: usize) -> String {
        let mut sink = Vec::new();
        let mut recording = Recording::new(&mut sink, Some(max_bytes));
        output.chunks(chunk).for_each(|chunk| recording.write(chunk));
        recording.write_tail();
        String::from_utf8(sink).unwrap()
    }

    #[test]
    fn middle_is_omitted_for_any_size_of_the_writes() {
        for chunk in 1..=12 {
            let expected = "01234\n[... 2 B omitted: bytes 5-6 ...]\n789ab".to_owned();
            assert_eq!(recorded(b"0123456789ab", 10, chunk), expected, "{chunk}");
            assert_eq!(recorded(b"0123456789", 10, chunk), "0123456789");
            assert_eq!(recorded(b"012345", 10, chunk), "012345");
            let nothing = "\n[... 6 B omitted: bytes 0-5 ...]\n".to_owned();
            assert_eq!(recorded(b"012345", 0, chunk), nothing);
            let first = "0\n[... 5 B omitted: bytes 1-5 ...]\n".to_owned();
            assert_eq!(recorded(b"012345", 1, chunk), first);
        }
    }

    #[test]
    fn line_starts_on_a_line_of_its_own() {
        let mut sink = Vec::new();
        let mut recording = Recording::new(&mut sink, None);
        recording.write(b"half");
        recording.write_line("[a]");
        recording.write_line("[b]");
        assert_eq!(sink, b"half\n[a]\n[b]\n");
    }

    #[test]
    fn nothing_is_written_after_an_error_of_the_sink() {
        struct FullSink(usize);
        impl Sink for FullSink {
            fn write(&mut self, _: &[u8]) -> anyhow::Result<()> {
                self.0 += 1;
                anyhow::bail!("full")
            }
        }
        let mut sink = FullSink(0);
        let mut recording = Recording::new(&mut sink, None);
        recording.write(b"a");
        recording.write(b"b");
        assert_eq!(recording.into_error().unwrap().to_string(), "full");
        assert_eq!(sink.0, 1);
    }
}
