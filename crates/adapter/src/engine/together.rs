//! Sockets that the threads open together.
//!
//! The program that spreads an interface's frames over a packet group numbers the sockets in the
//! order in which they joined (packet(7), PACKET_FANOUT). When the interface is replaced, each
//! thread notices that by itself, so the threads would join in any order, and most frames would
//! have to be passed on. So the first thread that notices opens the sockets of all threads, and
//! each other thread takes its own.

/// Sockets of one interface that were opened for threads and not taken yet.
#[derive(Debug)]
pub(super) struct Together<T> {
    /// The number of the interface.
    interface: u32,
    /// By thread.
    left: Vec<Option<T>>,
}

impl<T> Default for Together<T> {
    fn default() -> Self {
        Self {
            interface: 0,
            left: Vec::new(),
        }
    }
}

impl<T> Together<T> {
    /// The socket of `thread`. If none is left for it on this interface, `open` is called for each
    /// of `threads` threads in their order. `None` when one of these calls has returned `None`.
    pub(super) fn take<E>(
        &mut self,
        interface: u32,
        (thread, threads): (usize, usize),
        mut open: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let own = self.left.get_mut(thread);
        if let Some(opened) = own
            .and_then(Option::take)
            .filter(|_| interface == self.interface)
        {
            return Ok(Some(opened));
        }
        // Those of an earlier interface are closed.
        self.left.clear();
        self.interface = interface;
        let mut opened = Vec::with_capacity(threads);
        for _ in 0..threads {
            let Some(next) = open()? else { return Ok(None) };
            opened.push(Some(next));
        }
        self.left = opened;
        Ok(self.left.get_mut(thread).and_then(Option::take))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sockets that the threads take when they notice the interfaces in this order. Sockets are
    /// numbered as they are opened; returns how many there were.
    fn taken(noticed: &[(u32, usize)]) -> (Vec<usize>, usize) {
        let (mut together, mut opened) = (Together::default(), 0);
        let take = |&(interface, thread)| {
            let open = || {
                opened += 1;
                Ok::<_, ()>(Some(opened - 1))
            };
            let taken = together.take(interface, (thread, 3), open);
            taken.expect("opened").expect("there is one")
        };
        let all = noticed.iter().map(take).collect();
        (all, opened)
    }

    #[test]
    fn sockets_join_in_the_order_of_the_threads_whoever_notices_first() {
        assert_eq!(taken(&[(7, 2), (7, 0), (7, 1)]), (vec![2, 0, 1], 3));
        assert_eq!(taken(&[(7, 0), (7, 1), (7, 2)]), (vec![0, 1, 2], 3));
    }

    #[test]
    fn sockets_of_an_interface_that_was_replaced_are_not_taken() {
        let noticed = [(7, 1), (8, 1), (8, 2), (9, 0), (9, 1), (9, 2)];
        assert_eq!(taken(&noticed), (vec![1, 4, 5, 6, 7, 8], 9));
    }

    #[test]
    fn failure_opens_nothing() {
        let mut together = Together::<u32>::default();
        for (second, expected) in [(Ok(None), Ok(None)), (Err("no"), Err("no"))] {
            let mut answers = [Ok(Some(1)), second].into_iter();
            let open = || answers.next().expect("no further call");
            assert_eq!(together.take(7, (0, 2), open), expected);
        }
        assert_eq!(
            together.take(7, (1, 2), || Ok::<_, ()>(Some(5))),
            Ok(Some(5))
        );
    }
}
