//! The common part of one engine's threads: the pages shown to programs, the holders' tokens, the
//! captures; and each other.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::{descriptors, memfd};
use toehold_channel::offload::{ROUTING_PAGE_BYTES, RoutingPage};
use toehold_tcp::Random;

use super::Error;
use super::arrivals::Arrivals;
use super::captures::Captures;
use super::clients::Clients;
use super::inbox::Door;
use super::loopback_aliases::{LoopbackAliases, shown};
use super::outgoing::OutgoingPorts;
use super::settings::Settings;
use super::tokens::Tokens;

#[derive(Debug)]
pub(super) struct Common {
    /// The link's name, in the operator's form.
    pub(super) link: String,
    /// The thread that makes a carrier stores its addresses. Rules and addresses are changed by the
    /// last thread that applies a change.
    pub(super) routing_page: RoutingPage,
    pub(super) relay_source: Ipv4Addr,
    pub(super) relay_port: u16,
    pub(super) captures: Captures,
    pub(super) clients: Arc<Clients>,
    pub(super) tokens: Arc<Tokens>,
    /// The ports of shared addresses for outgoing connections of programs.
    pub(super) outgoing: Option<OutgoingPorts>,
    /// The key of the Fast Open cookies that all threads give to remotes.
    pub(super) fast_open_key: [u64; 2],
    /// The threads, by their index.
    pub(super) doors: Vec<Arc<Door>>,
}

/// The parts that exist only once: for the first thread, and for the daemon.
pub(super) struct Singles {
    pub(super) arrivals: Arrivals,
    /// The page shown to clients.
    pub(super) routing_page: OwnedFd,
}

impl Common {
    /// # Errors
    /// See [`Error`].
    pub(super) fn new(
        settings: &Settings,
        outgoing: Option<OutgoingPorts>,
        doors: Vec<Arc<Door>>,
        random: &mut Random,
    ) -> Result<(Common, Singles), Error> {
        let os = |action| move |error| Error::Os(action, error);
        let tokens = Arc::new(Tokens::default());
        let arrivals = Arrivals::new(tokens.clone()).map_err(os("listen for programs"))?;
        let relay = arrivals.address().map_err(os("listen for programs"))?;
        // A random address in 127.0.0.0/8, so that other programs hardly have it, and not
        // 127.0.0.1.
        let [a, b, c, _] = (random.bits() as u32).to_ne_bytes();
        let relay_source = Ipv4Addr::new(127, 64 + a % 128, b, c);
        let made = memfd::create_for_readers(c"toehold-routing_page", ROUTING_PAGE_BYTES);
        let (file, base) = made.map_err(os("make what clients are shown"))?;
        // SAFETY: mapped for that length, writable, and kept for as long as the process lives.
        let routing_page = unsafe { RoutingPage::at(base.as_ptr()) };
        let own = LoopbackAliases::next_to(relay_source).for_all(settings);
        routing_page.publish(&settings.all_rules(), &shown(&own));
        routing_page.initialise(arrivals.namespace(), relay.port(), relay_source.octets());
        let common = Common {
            fast_open_key: [random.bits(), random.bits()],
            link: settings.device.to_string(),
            routing_page,
            relay_source,
            relay_port: relay.port(),
            captures: Captures::default(),
            clients: Arc::new(Clients::new(descriptors::carriers_max())),
            tokens,
            outgoing,
            doors,
        };
        let singles = Singles {
            arrivals,
            routing_page: file,
        };
        Ok((common, singles))
    }
}
