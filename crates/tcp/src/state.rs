//! How a connection stands: where in its life, where with regard to loss, and why it ended.

/// The states of RFC 9293 section 3.3.2. LISTEN is a table of its own; CLOSED means that nothing
/// will be sent or taken any more, and that the host has to be told or has to let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// No connection.
    Closed,
    /// A SYN is on its way; nothing has come back.
    SynSent,
    /// A SYN came; ours is not acknowledged.
    SynReceived,
    /// Open in both directions.
    Established,
    /// We have finished; the remote has not even acknowledged it.
    FinWait1,
    /// We have finished; the remote may still send.
    FinWait2,
    /// The remote has finished; the host may still send.
    CloseWait,
    /// Both have finished at once; ours is not acknowledged.
    Closing,
    /// Both have finished; ours, the later, is not acknowledged.
    LastAck,
    /// Waiting for old segments to die.
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

/// Where a connection stands with regard to loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Phase {
    /// No loss is known.
    #[default]
    Open,
    /// Losses are being repaired, or a mark answered, at the pace of the arrivals.
    Recovery,
    /// A timeout: everything begins again, in slow start.
    Loss,
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
    /// The remote refused, with a reset or by way of ICMP, before the connection existed.
    Refused,
    /// The remote reset it.
    Reset,
    /// Nothing came back for too long.
    TimedOut,
    /// There was no way to the remote, and so nothing came back: no neighbour that answered, or a
    /// router that said so.
    Unreachable,
    /// There was no way to its network: no route of ours, or of a router that said so.
    NoRoute,
    /// A router said that it is forbidden (ICMPv6 alone tells).
    Forbidden,
    /// The host gave it up.
    Aborted,
}
