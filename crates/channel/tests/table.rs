//! The connection table under threads.

#![cfg(not(loom))]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

use toehold_channel::table::{ENTRIES, EntryState, TABLE_BYTES, Table};

/// Runs `test` on a fresh table; untouched pages cost nothing.
fn with_table(test: impl FnOnce(Table)) {
    let layout = Layout::from_size_align(TABLE_BYTES, 4096).unwrap();
    // SAFETY: the layout is not empty; zeroed memory is a free table.
    let base = unsafe { alloc_zeroed(layout) };
    assert!(!base.is_null());
    // SAFETY: page-aligned, TABLE_BYTES long, and outlives `test`, which cannot keep a copy of the
    // table.
    test(unsafe { Table::at(base) });
    // SAFETY: allocated above with this layout.
    unsafe { dealloc(base, layout) };
}

#[test]
fn threads_that_want_the_same_entry_get_different_ones() {
    const THREADS: usize = 4;
    const EACH: usize = 150;
    with_table(|table| {
        let mut all = HashSet::new();
        let claimed: Vec<u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(move || {
                        (0..EACH)
                            .map(|_| table.allocate(7, |_| false).unwrap())
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        for index in claimed {
            assert!(all.insert(index), "entry {index} was given out twice");
            let used = table.header().entries_used.load(Ordering::Relaxed).shown();
            assert!(index < used && used <= ENTRIES as u32);
        }
        assert_eq!(all.len(), THREADS * EACH);
    });
}

#[test]
fn an_entry_used_again_has_another_generation() {
    const ROUNDS: u32 = 2_000;
    with_table(|table| {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let index = table.allocate(0, |_| false).unwrap();
                        let entry = table.entry(index).unwrap();
                        // The entry is ours alone between claim and release, so this is the only
                        // writer.
                        let generation = entry.generation.load(Ordering::Relaxed);
                        entry.fd.store(generation, Ordering::Relaxed);
                        entry.generation.store(generation + 1, Ordering::Release);
                        entry
                            .state
                            .store(EntryState::Live as u32, Ordering::Release);
                        assert_eq!(entry.fd.load(Ordering::Relaxed), generation);
                        assert_eq!(entry.generation.load(Ordering::Relaxed), generation + 1);
                        entry
                            .state
                            .store(EntryState::Free as u32, Ordering::Release);
                    }
                });
            }
        });
        let used = table.header().entries_used.load(Ordering::Relaxed).shown();
        let generation = |index| &table.entry(index).unwrap().generation;
        let uses: u32 = (0..used)
            .map(|index| generation(index).load(Ordering::Relaxed))
            .sum();
        assert_eq!(uses, 3 * ROUNDS, "a use was lost or counted twice");
    });
}

#[test]
fn there_is_no_entry_beyond_the_last() {
    with_table(|table| {
        assert!(table.entry(ENTRIES as u32 - 1).is_some());
        assert!(table.entry(ENTRIES as u32).is_none());
        assert!(table.entry(u32::MAX).is_none());
        assert!(table.allocate(u32::MAX, |_| false).is_some());
    });
}

#[test]
fn a_table_without_a_free_place_near_the_hint_gives_none() {
    with_table(|table| {
        while table.allocate(3, |_| false).is_some() {}
        assert!(table.allocate(3, |_| false).is_none());
        // An entry that is given back can be claimed again.
        table
            .entry(3)
            .unwrap()
            .state
            .store(EntryState::Free as u32, Ordering::Release);
        assert_eq!(table.allocate(3, |_| false), Some(3));
    });
}
