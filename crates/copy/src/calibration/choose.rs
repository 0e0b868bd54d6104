//! Computes the choice from the measured curves. Pure arithmetic.
//!
//! A copy whose submitter has other work can be made in three ways: by hand; by the engine; or by
//! looking whether the memory is cold, and then choosing one of the two. The *loss* of a way at a
//! length is the ratio of its time to the best way's time, for memory in the cache or out of it,
//! whichever ratio is worse. The chosen lengths for a change of way minimise the product of all
//! losses. So one wild measurement does not move them.

use super::{Copybreak, Jobs};

/// The cost of looking whether memory is cached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) hot_ns: f64,
    pub(super) cold_ns: f64,
}

/// The lengths from which on the engine is used. The measurements ascend by length. Waking the
/// engine costs `wake_ns` more.
pub(super) fn copybreak(jobs: &[(usize, Jobs)], look: Look, wake_ns: f64) -> Copybreak {
    let ways = |jobs: &[(usize, Jobs)], extra_ns: f64| -> Vec<Losses> {
        jobs.iter()
            .map(|(_, jobs)| Losses::of(jobs, look, extra_ns))
            .collect()
    };
    let (mut best, mut looks, mut asks) = (f64::INFINITY, jobs.len(), jobs.len());
    let awake = ways(jobs, 0.0);
    // From the longest down, so that of two equal choices the one with less use of the engine is
    // taken.
    for hot in (0..=jobs.len()).rev() {
        for cold in (0..=hot).rev() {
            let total = product(&awake[..cold], |l| l.hand)
                * product(&awake[cold..hot], |l| l.look)
                * product(&awake[hot..], |l| l.engine);
            if total < best {
                (best, looks, asks) = (total, cold, hot);
            }
        }
    }
    // Waking costs the same at every length. If an awake engine gains at the longest measured
    // length, then its gain exceeds the cost of waking at some greater length.
    let longer = extended(jobs);
    let asleep = ways(&longer, wake_ns);
    let wakes = least((looks..=longer.len()).rev(), |at| {
        product(&asleep[..at], |l| l.hand) * product(&asleep[at..], |l| l.engine)
    });
    let bytes = |at: usize| longer.get(at).map_or(usize::MAX, |(bytes, _)| *bytes);
    let measured = |at: usize| jobs.get(at).map_or(usize::MAX, |(bytes, _)| *bytes);
    let awake = measured(looks);
    Copybreak {
        awake,
        hot: measured(asks),
        asleep: if awake == usize::MAX {
            awake
        } else {
            bytes(wakes)
        },
    }
}

/// The jobs, and some longer jobs, whose times grow in proportion to their lengths.
fn extended(jobs: &[(usize, Jobs)]) -> Vec<(usize, Jobs)> {
    let last = jobs.last().copied();
    let longer = last.into_iter().flat_map(|(bytes, jobs)| {
        [2u32, 4, 8].map(|times| (bytes * times as usize, jobs.scaled(f64::from(times))))
    });
    jobs.iter().copied().chain(longer).collect()
}

/// The length from which on the second of two costs is smaller on the whole.
pub(super) fn crossover(costs: &[(usize, f64, f64)]) -> usize {
    let ratio = |&(_, first, second): &(usize, f64, f64)| second / first;
    let at = least((0..=costs.len()).rev(), |at| {
        costs[at..].iter().map(ratio).product()
    });
    costs.get(at).map_or(usize::MAX, |(bytes, _, _)| *bytes)
}

/// The candidate with the least cost; of equal ones the first.
fn least(candidates: impl Iterator<Item = usize>, cost: impl Fn(usize) -> f64) -> usize {
    let (mut best, mut found) = (f64::INFINITY, usize::MAX);
    for candidate in candidates {
        let cost = cost(candidate);
        if cost < best {
            (best, found) = (cost, candidate);
        }
    }
    found
}

fn product(losses: &[Losses], of: impl Fn(&Losses) -> f64) -> f64 {
    losses.iter().map(of).product()
}

/// The loss of each way at one length.
struct Losses {
    hand: f64,
    look: f64,
    engine: f64,
}

impl Losses {
    fn of(jobs: &Jobs, look: Look, extra_ns: f64) -> Losses {
        let (engine_hot, engine_cold) = (
            jobs.engine_hot_ns + extra_ns,
            jobs.engine_cold_ns + extra_ns,
        );
        let best_hot = jobs.hand_hot_ns.min(engine_hot);
        let best_cold = jobs.hand_cold_ns.min(engine_cold);
        let worse = |hot: f64, cold: f64| (hot / best_hot).max(cold / best_cold);
        Losses {
            hand: worse(jobs.hand_hot_ns, jobs.hand_cold_ns),
            look: worse(jobs.hand_hot_ns + look.hot_ns, engine_cold + look.cold_ns) * HELPER,
            engine: worse(engine_hot, engine_cold) * HELPER,
        }
    }
}

/// A helper's time is not free: a copy that gains less than this factor is made by hand.
const HELPER: f64 = 1.02;

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths with the times of their jobs: by hand and by the engine with hot memory, then by
    /// hand and by the engine with cold memory.
    fn jobs(rows: &[(usize, [f64; 4])]) -> Vec<(usize, Jobs)> {
        let job = |&(bytes, ns): &(usize, [f64; 4])| {
            let jobs = Jobs {
                hand_hot_ns: ns[0],
                engine_hot_ns: ns[1],
                hand_cold_ns: ns[2],
                engine_cold_ns: ns[3],
            };
            (bytes, jobs)
        };
        rows.iter().map(job).collect()
    }

    const LOOK: Look = Look {
        hot_ns: 2.0,
        cold_ns: 10.0,
    };

    #[test]
    fn between_two_lengths_the_engine_is_asked_for_cold_memory_only() {
        let rows = jobs(&[
            (1, [50.0, 100.0, 60.0, 100.0]),
            (2, [100.0, 150.0, 200.0, 130.0]),
            (4, [200.0, 190.0, 400.0, 250.0]),
            (8, [400.0, 300.0, 800.0, 500.0]),
        ]);
        let found = copybreak(&rows, LOOK, 100.0);
        assert_eq!((found.awake, found.hot, found.asleep), (2, 4, 8));
        assert_eq!(copybreak(&rows, LOOK, 1e9).asleep, usize::MAX);
    }

    #[test]
    fn one_wild_measurement_moves_nothing() {
        let mut rows = jobs(&[
            (1, [50.0, 100.0, 60.0, 100.0]),
            (2, [100.0, 80.0, 120.0, 90.0]),
            (4, [200.0, 150.0, 400.0, 250.0]),
            (8, [400.0, 300.0, 800.0, 500.0]),
        ]);
        let calm = copybreak(&rows, LOOK, 0.0);
        rows[2].1.engine_hot_ns = 250.0;
        assert_eq!(copybreak(&rows, LOOK, 0.0), calm);
        assert_eq!(calm, Copybreak::fixed(2));
    }

    #[test]
    fn an_engine_that_gains_nothing_is_never_asked() {
        let rows = jobs(&[(1, [100.0, 99.0, 100.0, 99.0]), (2, [200.0; 4])]);
        assert_eq!(copybreak(&rows, LOOK, 0.0), Copybreak::NEVER);
        assert_eq!(copybreak(&[], LOOK, 0.0), Copybreak::NEVER);
    }

    #[test]
    fn a_crossover_is_where_the_second_begins_to_win_all_in_all() {
        assert_eq!(crossover(&[(1, 1.0, 2.0), (2, 2.0, 1.5), (4, 4.0, 3.0)]), 2);
        // The loss at the middle length exceeds the gain at the first.
        assert_eq!(crossover(&[(1, 1.0, 0.8), (2, 2.0, 4.0), (4, 4.0, 3.0)]), 4);
        assert_eq!(crossover(&[(1, 1.0, 2.0)]), usize::MAX);
        assert_eq!(crossover(&[]), usize::MAX);
    }
}
