//! TCP segments and their options (RFC 9293 section 3.1 and 3.2, RFC 7323, RFC 2018).

use core::fmt;
use core::ops::BitOr;

use super::{Malformed, put_u16, put_u32, u16_at, u32_at};

pub(crate) const HEADER_BYTES: usize = 20;
/// The data offset's four bits allow for 40 bytes of options.
pub(crate) const OPTIONS_BYTES_MAX: usize = 40;
/// NOP, NOP, timestamps: the options of every segment after the handshake (RFC 7323 appendix A).
pub(crate) const TIMESTAMPS_BYTES: usize = 12;
/// Offset of the flags in the header.
pub(crate) const FLAGS_AT: usize = 13;
/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_AT: usize = 16;

//= RFC 9293#3.1
//# A given TCP implementation can support any currently defined options, but the following
//# options MUST be supported (MUST-4 -- note Maximum Segment Size Option support is also part
//# of MUST-14 in Section 3.7.1):
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
const OPTION_TIMESTAMPS: u8 = 8;
const OPTION_FAST_OPEN: u8 = 34;
/// RFC 9768 section 3.2.3: AccECN0 and AccECN1, which differ in the order of their counters.
const OPTION_ACCURATE_ECN: [u8; 2] = [172, 174];

/// RFC 7323 section 2.3: "the maximum scale exponent is limited to 14".
pub(crate) const WINDOW_SCALE_MAX: u8 = 14;

/// A set of control bits.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags(pub(crate) u16);

impl Flags {
    pub(crate) const FIN: Self = Self(0x01);
    pub(crate) const SYN: Self = Self(0x02);
    pub(crate) const RST: Self = Self(0x04);
    pub(crate) const PSH: Self = Self(0x08);
    pub(crate) const ACK: Self = Self(0x10);
    pub(crate) const ECE: Self = Self(0x40);
    pub(crate) const CWR: Self = Self(0x80);
    /// RFC 9768.
    pub(crate) const AE: Self = Self(0x100);
    /// All ECN flags: the ACE field of RFC 9768.
    pub(crate) const ACE: Self = Self(Self::AE.0 | Self::CWR.0 | Self::ECE.0);

    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The three ECN flags as a number.
    #[inline]
    pub(crate) const fn ace(self) -> u8 {
        ((self.0 & Self::ACE.0) >> 6) as u8
    }

    /// The ECN flags that encode a number below 8.
    #[inline]
    pub(crate) const fn of_ace(ace: u8) -> Self {
        Self((ace as u16) << 6 & Self::ACE.0)
    }

    /// The flags in the thirteenth and fourteenth byte of a header.
    #[inline]
    pub(crate) const fn of(header: &[u8; HEADER_BYTES]) -> Self {
        Self((header[12] as u16 & 1) << 8 | header[FLAGS_AT] as u16)
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    /// The letters of tcpdump: `S`, `F`, `R`, `P`, `.`, `U`, `E`, `W`, `e`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, letter) in "FSRP.UEWe".chars().enumerate() {
            if self.0 & (1 << bit) != 0 {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

/// The timestamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timestamps {
    /// TSval: the sender's clock.
    pub(crate) value: u32,
    /// TSecr: the echoed clock of the receiver.
    pub(crate) echo: u32,
}

/// A segment with a consistent header; its checksum is verified separately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) timestamps: Option<Timestamps>,
    /// Options of a segment that has more than timestamps; empty in nearly every segment.
    pub(crate) options: &'a [u8],
    /// An option has an illegal length: that option and those after it are ignored.
    pub(crate) has_bad_option: bool,
    pub(crate) payload: &'a [u8],
}

impl<'a> Segment<'a> {
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(Malformed::TcpTruncated);
        };
        let header_bytes = usize::from(header[12] >> 4) * 4;
        if header_bytes < HEADER_BYTES || header_bytes > bytes.len() {
            return Err(Malformed::TcpTruncated);
        }
        let (options, payload) = bytes[HEADER_BYTES..].split_at(header_bytes - HEADER_BYTES);
        let mut segment = Self {
            source_port: u16_at(header, 0),
            destination_port: u16_at(header, 2),
            seq: u32_at(header, 4),
            ack: u32_at(header, 8),
            flags: Flags::of(header),
            //= RFC 9293#3.1
            //# The window size MUST be treated as an unsigned number, or else large window sizes
            //# will appear like negative windows and TCP will not work (MUST-1).
            window: u16_at(header, 14),
            timestamps: None,
            options: &[],
            has_bad_option: false,
            payload,
        };
        if segment.source_port == 0 || segment.destination_port == 0 {
            return Err(Malformed::TcpFlags);
        }
        // The layout RFC 7323 appendix A recommends, which nearly every segment has.
        if let Some(lone) = options.first_chunk::<TIMESTAMPS_BYTES>()
            && options.len() == TIMESTAMPS_BYTES
            && lone[..4] == [OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, 10]
        {
            segment.timestamps = Some(Timestamps {
                value: u32_at(lone, 4),
                echo: u32_at(lone, 8),
            });
        } else if !options.is_empty() {
            segment.parse_options(options);
        }
        Ok(segment)
    }

    //= RFC 9293#3.1
    //# A TCP implementation MUST be able to receive a TCP Option in any segment (MUST-5).
    /// Checks all options and extracts the timestamps.
    fn parse_options(&mut self, options: &'a [u8]) {
        for option in OptionIter(options) {
            let Ok((kind, body)) = option else {
                self.has_bad_option = true;
                break;
            };
            if kind == OPTION_TIMESTAMPS
                && let Some(body) = body.first_chunk::<8>()
            {
                self.timestamps = Some(Timestamps {
                    value: u32_at(body, 0),
                    echo: u32_at(body, 4),
                });
            }
        }
        self.options = options;
    }

    /// The sequence space of the segment: its payload, and one each for SYN and FIN.
    #[inline]
    pub(crate) fn sequence_bytes(&self) -> u64 {
        self.payload.len() as u64
            + u64::from(self.flags.has(Flags::SYN))
            + u64::from(self.flags.has(Flags::FIN))
    }

    /// The blocks of the SACK option, as wire numbers.
    pub(crate) fn sack_blocks(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        OptionIter(self.options)
            .filter_map(Result::ok)
            .find_map(|(kind, body)| (kind == OPTION_SACK).then_some(body))
            .unwrap_or_default()
            .chunks_exact(8)
            .map(|block| (u32_at(block, 0), u32_at(block, 4)))
    }

    //= RFC 9768#3.2.3
    //# All implementations of a Data Sender that read any AccECN Option MUST be able to read AccECN
    //# Options of any of the above lengths.
    //= RFC 9768#3.2.3
    //# For forward compatibility, if the AccECN Option is of any other length, implementations MUST
    //# use those whole 3-octet fields that fit within the length and ignore the remainder of the
    //# option, treating it as padding.
    /// The counters of the AccECN option (RFC 9768 section 3.2.3), if it has the counter of marked
    /// bytes.
    pub(crate) fn ecn_counters(&self) -> Option<EcnCounters> {
        let mut options = OptionIter(self.options).filter_map(Result::ok);
        let (order, body) = options.find_map(|(kind, body)| {
            let order = OPTION_ACCURATE_ECN.iter().position(|&one| one == kind)?;
            Some((order, body))
        })?;
        let counter = |at: usize| {
            let bytes = body.get(3 * at..3 * at + 3)?;
            Some(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
        };
        let outer = [counter(0), counter(2)];
        Some(EcnCounters {
            ect0: outer[order].unwrap_or(0),
            ce: counter(1)?,
            ect1: outer[1 - order].unwrap_or(0),
        })
    }

    //= RFC 7323#2.2
    //# A Window Scale option in a segment without a SYN bit MUST be ignored.
    /// The options a SYN negotiates.
    pub(crate) fn syn_options(&self) -> SynOptions {
        let mut syn = SynOptions {
            timestamps: self.timestamps,
            ..SynOptions::default()
        };
        for (kind, body) in OptionIter(self.options).filter_map(Result::ok) {
            match (kind, body) {
                (OPTION_MSS, &[high, low]) => syn.mss = Some(u16::from_be_bytes([high, low])),
                //= RFC 7323#2.3
                //# If a Window Scale option is received with a shift.cnt value larger than 14, the
                //# TCP SHOULD log the error but MUST use 14 instead of the specified value.
                // RFC 7323 section 2.3: a shift count above 14 is to be used as 14.
                (OPTION_WINDOW_SCALE, &[shift]) => {
                    syn.window_scale = Some(shift.min(WINDOW_SCALE_MAX));
                }
                //= RFC 9293#3.1
                //# A TCP implementation MUST (MUST-6) ignore without error any TCP Option it does
                //# not implement, assuming that the option has a length field.
                (OPTION_SACK_PERMITTED, []) => syn.sack_permitted = true,
                (OPTION_FAST_OPEN, body) => {
                    syn.fast_open = FastOpenCookie::read(body).or(syn.fast_open);
                }
                _ => {}
            }
        }
        syn
    }
}

/// Iterates over options as (kind, body). Ends with an error at the first malformed option.
struct OptionIter<'a>(&'a [u8]);

impl<'a> Iterator for OptionIter<'a> {
    type Item = Result<(u8, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, rest) = self.0.split_first()?;
            match kind {
                OPTION_END => return None,
                //= RFC 9293#3.1
                //# All TCP Options except End of Option List Option (EOL) and No-Operation (NOP)
                //# MUST have length fields, including all future options (MUST-68).
                //= RFC 9293#3.2
                //# There is no guarantee that senders will use this option, so receivers MUST be
                //# prepared to process options even if they do not begin on a word boundary
                //# (MUST-64).
                OPTION_NOP => self.0 = rest,
                _ => {
                    //= RFC 9293#3.1
                    //# TCP implementations MUST be prepared to handle an illegal option length
                    //# (e.g., zero); a suggested procedure is to reset the connection and log the
                    //# error cause (MUST-7).
                    // RFC 9293 section 3.2, MUST-7: "prepared to handle an illegal option length".
                    // With a reset, anyone who damages a header could end a connection. So, like
                    // Linux (tcp_parse_options), we use the options before the illegal one, and the
                    // segment.
                    let length = rest.first().map_or(0, |&length| usize::from(length));
                    if length < 2 || length > self.0.len() {
                        self.0 = &[];
                        return Some(Err(Malformed::TcpOption));
                    }
                    let (option, rest) = self.0.split_at(length);
                    self.0 = rest;
                    return Some(Ok((kind, &option[2..])));
                }
            }
        }
    }
}

/// The options that a SYN offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SynOptions {
    pub(crate) mss: Option<u16>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) fast_open: Option<FastOpenCookie>,
}

/// The cookie of a Fast Open option (RFC 7413 section 4.1.1). An empty one asks for a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FastOpenCookie {
    /// Bytes after the cookie's end are zero.
    bytes: [u8; Self::BYTES_MAX],
    length: u8,
}

impl FastOpenCookie {
    const BYTES_MIN: usize = 4;
    const BYTES_MAX: usize = 16;
    /// Asks for a cookie.
    pub(crate) const REQUEST: Self = Self {
        bytes: [0; Self::BYTES_MAX],
        length: 0,
    };

    /// A cookie of eight bytes, as Linux makes them.
    pub(crate) fn of_word(word: u64) -> Self {
        let mut cookie = Self::REQUEST;
        cookie.bytes[..8].copy_from_slice(&word.to_be_bytes());
        cookie.length = 8;
        cookie
    }

    //= RFC 7413#4.1.1
    //# Options with invalid Length values or without the SYN flag set MUST be ignored.
    //= RFC 7413#4.1.1
    //# The number MUST be even.
    /// Reads the cookie in an option's body. The body is empty or has an even number of bytes, 4 to
    /// 16. Like Linux (tcp_parse_fastopen_option), any other body counts as no option.
    fn read(body: &[u8]) -> Option<Self> {
        let fits = (Self::BYTES_MIN..=Self::BYTES_MAX).contains(&body.len());
        let is_valid = body.is_empty() || fits && body.len().is_multiple_of(2);
        is_valid.then(|| {
            let mut cookie = Self::REQUEST;
            cookie.bytes[..body.len()].copy_from_slice(body);
            cookie.length = body.len() as u8;
            cookie
        })
    }

    pub(crate) fn is_request(&self) -> bool {
        self.length == 0
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The counters of the AccECN option: bytes of payload, modulo 2^24, by the ECN codepoint of their
/// packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct EcnCounters {
    pub(crate) ect0: u32,
    pub(crate) ce: u32,
    pub(crate) ect1: u32,
}

/// The fixed part of a header to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
}

impl Header {
    /// Writes the header with a checksum of zero, and with the data offset for `options_bytes`.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8], options_bytes: usize) {
        let out: &mut [u8; HEADER_BYTES] = out
            .first_chunk_mut()
            .expect("callers pass buffers of HEADER_BUFFER_BYTES");
        put_u16(out, 0, self.source_port);
        put_u16(out, 2, self.destination_port);
        put_u32(out, 4, self.seq);
        put_u32(out, 8, self.ack);
        out[12] = (((HEADER_BYTES + options_bytes) / 4) as u8) << 4 | (self.flags.0 >> 8) as u8;
        out[FLAGS_AT] = self.flags.0 as u8;
        put_u16(out, 14, self.window);
        put_u32(out, 16, 0); // Checksum and urgent pointer.
    }
}

/// Options under construction; padded to a multiple of four at the end.
pub(crate) struct OptionWriter {
    bytes: [u8; OPTIONS_BYTES_MAX],
    length: usize,
}

impl OptionWriter {
    pub(crate) fn new() -> Self {
        Self {
            //= RFC 9293#3.1
            //# The content of the header beyond the End of Option List Option MUST be header
            //# padding of zeros (MUST-69).
            bytes: [OPTION_NOP; OPTIONS_BYTES_MAX],
            length: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(crate) fn syn(&mut self, syn: &SynOptions) {
        //= RFC 9293#3.7.1
        //# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
        if let Some(mss) = syn.mss {
            let [high, low] = mss.to_be_bytes();
            self.push(&[OPTION_MSS, 4, high, low]);
        }
        match (syn.sack_permitted, syn.timestamps) {
            (true, Some(timestamps)) => {
                self.push(&[OPTION_SACK_PERMITTED, 2]);
                self.push(&timestamps_bytes(timestamps)[2..]);
            }
            (true, None) => self.push(&[OPTION_NOP, OPTION_NOP, OPTION_SACK_PERMITTED, 2]),
            (false, Some(timestamps)) => self.push(&timestamps_bytes(timestamps)),
            (false, None) => {}
        }
        if let Some(shift) = syn.window_scale {
            self.push(&[OPTION_NOP, OPTION_WINDOW_SCALE, 3, shift]);
        }
        // Written last, so that padding follows it.
        if let Some(cookie) = &syn.fast_open {
            self.push(&[OPTION_FAST_OPEN, 2 + cookie.length]);
            self.push(cookie.as_bytes());
        }
    }

    pub(crate) fn timestamps(&mut self, timestamps: Timestamps) {
        self.push(&timestamps_bytes(timestamps));
    }

    //= RFC 9768#3.2.3
    //# When a Data Receiver sends an AccECN Option, it MUST set the Kind field to 172 if using
    //# Order 0, or to 174 if using Order 1.
    //= RFC 9768#3.2.3
    //# The length field MUST indicate which fields are present as follows:
    //= RFC 9768#3.2.3.3
    //# Whenever possible, it SHOULD include a field for every byte counter that has changed at some
    //# time during the connection (see examples later).
    /// Adds the counters of the AccECN option; the counter of ECT(1) only if a packet came with
    /// ECT(1). `blocks` SACK blocks will follow: the option is left out if two of them would have
    /// no room.
    pub(crate) fn ecn_counters(&mut self, counters: EcnCounters, blocks: usize) {
        let EcnCounters { ect0, ce, ect1 } = counters;
        let all = [ect0, ce, ect1];
        let count = if ect1 == 1 { 2 } else { 3 };
        let option_bytes = 2 + 3 * count;
        let end = (self.length + option_bytes).next_multiple_of(4);
        //= RFC 9768#3.2.3.3
        //# If SACK has been negotiated [RFC2018], and the smallest recommended AccECN Option would
        //# leave insufficient space for two SACK blocks on a particular ACK, the Data Receiver MUST
        //# give precedence to the SACK option (total 18 octets), because loss feedback is more
        //# critical.
        //= RFC 9768#3.2.3.3
        //# If there is insufficient space to include an AccECN TCP option containing the counter(s)
        //# that have changed since the previous AccECN TCP option, then the entire AccECN TCP
        //# option MUST be omitted.
        if end + sack_bytes(blocks.min(2)) > OPTIONS_BYTES_MAX {
            return;
        }
        self.push(&[OPTION_ACCURATE_ECN[0], option_bytes as u8]);
        for counter in &all[..count] {
            self.push(&counter.to_be_bytes()[1..]);
        }
        self.length = end;
    }

    /// Adds as many of `blocks` as fit (RFC 2018 section 3).
    pub(crate) fn sack(&mut self, blocks: &[(u32, u32)]) {
        let room = (OPTIONS_BYTES_MAX - self.length).saturating_sub(4) / 8;
        let blocks = &blocks[..blocks.len().min(room)];
        if !blocks.is_empty() {
            self.push(&[
                OPTION_NOP,
                OPTION_NOP,
                OPTION_SACK,
                (2 + 8 * blocks.len()) as u8,
            ]);
            for (start, end) in blocks {
                self.push(&start.to_be_bytes());
                self.push(&end.to_be_bytes());
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length.next_multiple_of(4)]
    }
}

/// Length in bytes of a SACK option with `blocks` blocks and its two NOPs.
const fn sack_bytes(blocks: usize) -> usize {
    if blocks == 0 { 0 } else { 4 + 8 * blocks }
}

/// The timestamps option, after two NOPs.
#[inline]
pub(crate) fn timestamps_bytes(timestamps: Timestamps) -> [u8; TIMESTAMPS_BYTES] {
    let mut bytes = [
        OPTION_NOP,
        OPTION_NOP,
        OPTION_TIMESTAMPS,
        10,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    put_u32(&mut bytes, 4, timestamps.value);
    put_u32(&mut bytes, 8, timestamps.echo);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment_with(options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        Header {
            source_port: 1,
            destination_port: 2,
            seq: 3,
            ack: 4,
            flags: Flags::ACK,
            window: 5,
        }
        .write(&mut bytes, options.len());
        bytes.extend_from_slice(options);
        bytes.extend_from_slice(payload);
        bytes
    }

    //= RFC 7413#4.1.1
    //= type=test
    //# The number MUST be even.
    //= RFC 7413#4.1.1
    //= type=test
    //# Options with invalid Length values or without the SYN flag set MUST be ignored.
    #[test]
    fn cookies_have_none_or_an_even_number_of_four_to_sixteen_bytes() {
        for length in 0..=18u8 {
            let mut option = vec![OPTION_FAST_OPEN, 2 + length];
            option.extend(1..=length);
            option.resize(option.len().next_multiple_of(4), OPTION_NOP);
            let bytes = segment_with(&option, b"");
            let segment = Segment::parse(&bytes).expect("a header");
            let cookie = segment.syn_options().fast_open;
            let is_valid = matches!(length, 0 | 4 | 6 | 8 | 10 | 12 | 14 | 16);
            assert_eq!(cookie.is_some(), is_valid, "{length} bytes");
            let mut writer = OptionWriter::new();
            writer.syn(&SynOptions {
                fast_open: cookie,
                ..SynOptions::default()
            });
            assert!(!is_valid || writer.as_bytes() == option, "{length} bytes");
        }
    }

    #[test]
    fn a_syn_has_room_for_all_options_and_the_longest_cookie() {
        let cookie = FastOpenCookie::read(&[7; 16]);
        let mut writer = OptionWriter::new();
        let all = SynOptions {
            mss: Some(1_460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            fast_open: cookie,
        };
        writer.syn(&all);
        let bytes = segment_with(writer.as_bytes(), b"");
        let segment = Segment::parse(&bytes).expect("a header");
        assert_eq!(segment.syn_options(), all);
        assert_eq!(writer.as_bytes().len(), OPTIONS_BYTES_MAX);
    }

    //= RFC 9768#3.2.3
    //= type=test
    //# When a Data Receiver sends an AccECN Option, it MUST set the Kind field to 172 if using
    //# Order 0, or to 174 if using Order 1.
    //= RFC 9768#3.2.3
    //= type=test
    //# The length field MUST indicate which fields are present as follows:
    //= RFC 9768#3.2.3
    //= type=test
    //# All implementations of a Data Sender that read any AccECN Option MUST be able to read AccECN
    //# Options of any of the above lengths.
    //= RFC 9768#3.2.3
    //= type=test
    //# For forward compatibility, if the AccECN Option is of any other length, implementations MUST
    //# use those whole 3-octet fields that fit within the length and ignore the remainder of the
    //# option, treating it as padding.
    #[test]
    fn counters_of_marks_survive_a_round_trip_in_both_orders() {
        for ect1 in [1, 70_000] {
            let counters = EcnCounters {
                ect0: 0xfe_dcba,
                ce: 0x12_3456,
                ect1,
            };
            let mut writer = OptionWriter::new();
            writer.timestamps(Timestamps { value: 1, echo: 2 });
            writer.ecn_counters(counters, 0);
            writer.sack(&[(1, 2), (3, 4), (5, 6)]);
            let bytes = segment_with(writer.as_bytes(), b"");
            let segment = Segment::parse(&bytes).unwrap();
            let expected = EcnCounters {
                ect1: if ect1 == 1 { 0 } else { ect1 },
                ..counters
            };
            assert_eq!(segment.ecn_counters(), Some(expected));
            assert_eq!(segment.sack_blocks().count(), if ect1 == 1 { 2 } else { 1 });
            let bytes = segment_with(&[174, 8, 0, 0, 9, 0, 1, 0], b"");
            let other_order = Segment::parse(&bytes).unwrap().ecn_counters().unwrap();
            assert_eq!((other_order.ect1, other_order.ce), (9, 256));
        }
        // Without the counter of marks the other counters are ignored, too.
        for short in [[172, 5, 0, 0, 9, 1, 1, 1], [174, 2, 1, 1, 1, 1, 1, 1]] {
            let bytes = segment_with(&short, b"");
            assert_eq!(Segment::parse(&bytes).unwrap().ecn_counters(), None);
        }
        // An option of another length is used for the counters it has in full.
        let bytes = segment_with(&[172, 10, 0, 0, 9, 0, 1, 0, 7, 7, 1, 1], b"");
        let part = Segment::parse(&bytes).unwrap().ecn_counters().unwrap();
        assert_eq!((part.ect0, part.ce, part.ect1), (9, 256, 0));
        let long = [172, 14, 0, 0, 9, 0, 1, 0, 0, 0, 7, 6, 6, 6, 1, 1];
        let bytes = segment_with(&long, b"");
        let all = Segment::parse(&bytes).unwrap().ecn_counters().unwrap();
        assert_eq!((all.ect0, all.ce, all.ect1), (9, 256, 7));
    }

    //= RFC 9293#3.1
    //= type=test
    //# A given TCP implementation can support any currently defined options, but the following
    //# options MUST be supported (MUST-4 -- note Maximum Segment Size Option support is also part
    //# of MUST-14 in Section 3.7.1):
    //= RFC 9293#3.7.1
    //= type=test
    //# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
    #[test]
    fn options_survive_a_round_trip() {
        let syn = SynOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            fast_open: None,
        };
        let mut writer = OptionWriter::new();
        writer.syn(&syn);
        assert_eq!(writer.as_bytes().len(), 20);
        let bytes = segment_with(writer.as_bytes(), b"");
        assert_eq!(Segment::parse(&bytes).unwrap().syn_options(), syn);
    }

    //= RFC 9293#3.1
    //= type=test
    //# A TCP implementation MUST be able to receive a TCP Option in any segment (MUST-5).
    #[test]
    fn sack_blocks_stop_where_the_options_end() {
        let blocks = [(1, 2), (3, 4), (5, 6), (7, 8)];
        let mut writer = OptionWriter::new();
        writer.timestamps(Timestamps { value: 9, echo: 9 });
        writer.sack(&blocks);
        let bytes = segment_with(writer.as_bytes(), b"payload");
        let segment = Segment::parse(&bytes).unwrap();
        assert_eq!(segment.timestamps, Some(Timestamps { value: 9, echo: 9 }));
        assert_eq!(segment.sack_blocks().collect::<Vec<_>>(), blocks[..3]);
        assert_eq!(segment.payload, b"payload");
    }

    //= RFC 9293#3.1
    //= type=test
    //# TCP implementations MUST be prepared to handle an illegal option length (e.g., zero); a
    //# suggested procedure is to reset the connection and log the error cause (MUST-7).
    //= RFC 9293#3.1
    //= type=test
    //# All TCP Options except End of Option List Option (EOL) and No-Operation (NOP) MUST have
    //# length fields, including all future options (MUST-68).
    #[test]
    fn options_of_illegal_length_end_the_options_and_not_the_segment() {
        for bad in [[8, 0, 0, 0], [8, 1, 0, 0], [8, 10, 0, 0], [1, 1, 1, 5]] {
            let options = [&[OPTION_MSS, 4, 5, 0xb4], &bad[..], &[3, 3, 7, 0]].concat();
            // Otherwise the next byte would be the option's length.
            let is_found = bad[3] != 5;
            let bytes = segment_with(&options[..if is_found { 12 } else { 8 }], b"payload");
            let segment = Segment::parse(&bytes).expect("only an option is bad");
            assert!(segment.has_bad_option);
            assert_eq!(segment.payload, b"payload");
            let syn = segment.syn_options();
            assert_eq!((syn.mss, syn.window_scale), (Some(1_460), None));
        }
    }

    //= RFC 9293#3.1
    //= type=test
    //# A TCP implementation MUST (MUST-6) ignore without error any TCP Option it does not
    //# implement, assuming that the option has a length field.
    #[test]
    fn unknown_and_odd_options_are_skipped() {
        let bytes = segment_with(&[254, 4, 0, 0, 8, 3, 0, 3, 3, 99, 0, 0], b"");
        let segment = Segment::parse(&bytes).unwrap();
        assert_eq!(segment.timestamps, None);
        assert_eq!(segment.syn_options().window_scale, Some(14));
    }

    #[test]
    fn options_begin_anywhere() {
        //= RFC 9293#3.2
        //= type=test
        //# There is no guarantee that senders will use this option, so receivers MUST be prepared
        //# to process options even if they do not begin on a word boundary (MUST-64).
        let timestamps = Timestamps { value: 1, echo: 2 };
        let option = &timestamps_bytes(timestamps)[2..];
        for before in 0..4 {
            let mut options = vec![OPTION_NOP; before];
            options.extend_from_slice(option);
            options.extend([OPTION_WINDOW_SCALE, 3, 5]);
            options.resize(options.len().next_multiple_of(4), OPTION_END);
            let bytes = segment_with(&options, b"");
            let segment = Segment::parse(&bytes).unwrap();
            assert_eq!(segment.timestamps, Some(timestamps));
            assert_eq!(segment.syn_options().window_scale, Some(5));
        }
    }

    #[test]
    fn padding_is_no_end_of_options() {
        //= RFC 9293#3.1
        //= type=test
        //# The content of the header beyond the End of Option List Option MUST be header padding of
        //# zeros (MUST-69).
        for bits in 0..16u16 {
            let has = |bit: u16| bits & 1 << bit != 0;
            let mut writer = OptionWriter::new();
            writer.syn(&SynOptions {
                mss: has(0).then_some(0x0101),
                window_scale: has(1).then_some(1),
                sack_permitted: has(2),
                timestamps: has(3).then_some(Timestamps { value: 1, echo: 1 }),
                fast_open: None,
            });
            let mut at = 0;
            while let Some(&kind) = writer.as_bytes().get(at) {
                assert_ne!(kind, OPTION_END);
                let is_alone = kind == OPTION_NOP;
                at += if is_alone {
                    1
                } else {
                    writer.as_bytes()[at + 1].into()
                };
            }
            assert_eq!(at % 4, 0);
        }
    }

    #[test]
    fn every_truncation_is_refused_or_parsed_but_never_read_past() {
        let mut writer = OptionWriter::new();
        writer.sack(&[(1, 2)]);
        let bytes = segment_with(writer.as_bytes(), b"abc");
        for length in 0..bytes.len() {
            let parsed = Segment::parse(&bytes[..length]);
            assert_eq!(parsed.is_ok(), length >= bytes.len() - 3);
        }
    }
}
