//! Orderings of protocols in which several modules take part. Each stands here once, with the
//! access that it pairs with. An ordering that one module uses stands at its access.

use core::sync::atomic::Ordering;

/// To keep a connection on its carrier, one side pins it (`Entry::flags`), and then looks at the
/// region. To give it a region, the other side stores the region, and then looks at the flags. The
/// look in `pairing::attach` pairs with the one after `Connection::pin`: at least one sees the
/// other side's store.
pub(crate) const PIN_SEQ_CST: Ordering = Ordering::SeqCst;

/// Counts one user of an object out. The thread that counts the last user out ends the object. Its
/// decrement pairs with those of the others (`fetch_sub`), so all their uses of the object come
/// before.
pub(crate) const LAST_USER_ACQ_REL: Ordering = Ordering::AcqRel;

/// Stores `Entry::flags` after the words that `FLAG_OFFLOAD` speaks of (true addresses, place in
/// the routing page). Pairs with the loads by [`OFFLOAD_ACQUIRE`].
pub(crate) const OFFLOAD_RELEASE: Ordering = Ordering::Release;

/// Loads `Entry::flags` before those words. Pairs with the stores by [`OFFLOAD_RELEASE`].
pub(crate) const OFFLOAD_ACQUIRE: Ordering = Ordering::Acquire;

/// Stores the state of an entry that is filled in, or that its user has done with. Pairs with the
/// compare-exchange in `Header::allocate` and with the loads by [`STATE_ACQUIRE`].
pub(crate) const STATE_RELEASE: Ordering = Ordering::Release;

/// Loads the state of an entry before its other words. Pairs with the stores by [`STATE_RELEASE`].
pub(crate) const STATE_ACQUIRE: Ordering = Ordering::Acquire;
