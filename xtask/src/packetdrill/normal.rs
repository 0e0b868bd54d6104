//! A script without the parts that only Linux demands and no RFC does.
//!
//! - The division of a burst into frames, and which of them carry PSH: RFC 9293 section 3.9.1.2
//!   lets a sender set PSH when it has no more data buffered. Linux also sets it after half a
//!   window. The script's large frames become segments, the engine sends segments, and neither has
//!   PSH.
//! - `tcpi_reordering`: the kernel's count of how far segments overtook each other. RFC 8985
//!   measures reordering by time.
//!
//! Everything else is compared unchanged: sequence numbers, times, acknowledgements, windows.

/// The choices that are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Without {
    /// Frames: outgoing data is compared in segments of this many bytes, without PSH.
    pub(super) frames_of: Option<u32>,
    /// Whether the script asserts something of `tcpi_reordering`.
    pub(super) reordering: bool,
}

impl Without {
    /// Whether the script stays unchanged.
    pub(super) fn is_nothing(self) -> bool {
        self == Without::default()
    }
}

/// A script without these choices.
pub(super) fn rewrite(script: &str, without: Without) -> String {
    let mut rewritten = String::with_capacity(script.len());
    for line in script.lines() {
        let cut = without.frames_of.and_then(|bytes| cut(line, bytes));
        let mut line = cut.unwrap_or_else(|| line.to_owned());
        if without.reordering && line.contains("assert tcpi_reordering") {
            line = without_assertion(&line);
        }
        rewritten.push_str(&line);
        rewritten.push('\n');
    }
    rewritten
}

/// Divides a line about an outgoing segment into several, without PSH; `None` for other lines.
fn cut(line: &str, segment_bytes: u32) -> Option<String> {
    let (time, rest) = line.split_once(" > ")?;
    if time.contains("//") || time.contains('`') || time.contains('"') {
        return None;
    }
    let mut words = rest.splitn(3, ' ');
    let (flags, numbers) = (words.next()?, words.next()?);
    let others = words.next().unwrap_or_default();
    let (first, span) = numbers.split_once(':')?;
    let (last, length) = span.strip_suffix(')')?.split_once('(')?;
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    let length: u32 = length.parse().ok()?;
    let flags = match flags.replace('P', "") {
        none if none.is_empty() => ".".to_owned(),
        flags => flags,
    };
    let count = length.div_ceil(segment_bytes).max(1);
    let segment = |index: u32| {
        let start = first + index * segment_bytes;
        let end = if index + 1 < count {
            start + segment_bytes
        } else {
            last
        };
        let time = if index == 0 { time } else { "   +0" };
        let flags = match index + 1 < count {
            true => flags.replace('F', ""),
            false => flags.clone(),
        };
        format!("{time} > {flags} {start}:{end}({}) {others}", end - start)
    };
    Some((0..count).map(segment).collect::<Vec<_>>().join("\n"))
}

/// The line with an assertion that always holds. Other assertions are on separate lines.
fn without_assertion(line: &str) -> String {
    let (before, after) = line
        .split_once("assert tcpi_reordering")
        .expect("the caller has looked");
    let end = after.find("}%").map_or("", |at| &after[at..]);
    format!("{before}assert True {end}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outgoing_frames_become_segments_without_push() {
        let script = "\
            +0 write(4, ..., 2500) = 2500\n\
            +.3~+.303 > P. 1001:3501(2500) ack 1 <nop,nop>\n\
            +0 > P. 1:81(80) ack 1\n\
            +0 > FP. 1:2001(2000) ack 1\n\
            +.1 < P. 1:2001(2000) ack 1\n\
            // a > P. 1:2(1) ack 1\n\
            +0 > S. 0:0(0) ack 1 <mss 1460>\n";
        let expected = "\
            +0 write(4, ..., 2500) = 2500\n\
            +.3~+.303 > . 1001:2001(1000) ack 1 <nop,nop>\n   \
            +0 > . 2001:3001(1000) ack 1 <nop,nop>\n   \
            +0 > . 3001:3501(500) ack 1 <nop,nop>\n\
            +0 > . 1:81(80) ack 1\n\
            +0 > . 1:1001(1000) ack 1\n   \
            +0 > F. 1001:2001(1000) ack 1\n\
            +.1 < P. 1:2001(2000) ack 1\n\
            // a > P. 1:2(1) ack 1\n\
            +0 > S. 0:0(0) ack 1 <mss 1460>\n";
        let without = Without {
            frames_of: Some(1_000),
            reordering: false,
        };
        assert_eq!(rewrite(script, without), expected);
    }

    #[test]
    fn only_what_is_asserted_of_reordering_is_left_out() {
        let script = "\
            +0 %{ assert tcpi_reordering == 10, tcpi_reordering }%\n\
            assert tcpi_reordering == 3\n\
            assert tcpi_sacked == 0, tcpi_sacked\n";
        let expected = "\
            +0 %{ assert True }%\n\
            assert True\n\
            assert tcpi_sacked == 0, tcpi_sacked\n";
        let without = Without {
            frames_of: None,
            reordering: true,
        };
        assert_eq!(rewrite(script, without), expected);
    }
}
