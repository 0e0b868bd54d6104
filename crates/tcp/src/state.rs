//! The state of a connection: its stage of life, its phase of loss recovery, and why it ended.

/// The states of RFC 9293 section 3.3.2. LISTEN has a table of its own. CLOSED means that nothing
/// is sent or accepted any more, but the host still has to be told or has to release the
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// No connection.
    Closed,
    /// A SYN was sent; there is no answer yet.
    SynSent,
    /// A SYN arrived; our SYN is not acknowledged.
    SynReceived,
    /// Open in both directions.
    Established,
    /// We have finished; our FIN is not acknowledged.
    FinWait1,
    /// We have finished; the remote may still send.
    FinWait2,
    /// The remote has finished; the host may still send.
    CloseWait,
    /// Both have finished at once; our FIN is not acknowledged.
    Closing,
    /// Both have finished, we later; our FIN is not acknowledged.
    LastAck,
    /// Waits until old segments have expired.
    TimeWait,
}

impl State {
    /// Whether the handshake is over and the connection has not ended.
    #[inline]
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }

    /// Whether the host's bytes may be sent in this state.
    #[inline]
    pub(crate) const fn may_send(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::LastAck | Self::Closing
        )
    }

    /// Whether the remote may still send payload.
    #[inline]
    pub(crate) const fn may_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }
}

/// The phase of loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Phase {
    /// No loss is known.
    #[default]
    Open,
    /// Losses are being repaired, or a mark is being answered, at the rate of arriving
    /// acknowledgements.
    Recovery,
    /// A timeout: sending restarts in slow start.
    Loss,
}

/// That a program has left its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// Both streams have ended. The program may have closed the connection, or may still hold it.
    Possible,
    /// No program waits for the remote.
    Certain,
}

//= RFC 9293#3.6
//# If the local TCP connection is closed by the remote side due to a FIN or RST received from
//# the remote side, then the local application MUST be informed whether it closed normally or
//# was aborted (MUST-12).
/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Both sides finished in order.
    Finished,
    /// The remote refused, by a reset or an ICMP message, before the connection existed.
    Refused,
    /// The remote reset it.
    Reset,
    /// The remote did not answer for too long.
    TimedOut,
    /// The remote did not answer, and it was unreachable: a neighbour did not answer, or a router
    /// said so.
    Unreachable,
    /// There was no route to its network: no route of ours, or a router said so.
    NoRoute,
    /// A router said that the destination is forbidden (only ICMPv6 reports this).
    Forbidden,
    /// The host aborted it.
    Aborted,
}
