//! Files for servers to serve: their sizes and bytes follow from a seed.

use std::fs;
use std::io;
use std::path::Path;

use toehold_measure::rng::Rng;

/// Writes a file for each size; the name is the size in decimal digits.
///
/// # Errors
///
/// When a file cannot be written.
pub fn of_sizes(folder: &Path, sizes: &[usize], seed: u64) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for &size in sizes {
        fs::write(
            folder.join(size.to_string()),
            bytes(size, seed ^ size as u64),
        )?;
    }
    Ok(())
}

/// Writes files `0`, `1` and so on. Their sizes are from `least` to `most`, in equal parts on a
/// logarithmic scale. The popularity of a file and its size have nothing to do with each other.
///
/// # Errors
///
/// When the disk refuses.
pub fn many(folder: &Path, count: usize, least: usize, most: usize, seed: u64) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut random = Rng::new(seed);
    let (low, high) = ((least as f64).ln(), (most as f64).ln());
    for number in 0..count {
        let part = random.below(1 << 20) as f64 / f64::from(1 << 20);
        let size = (low + (high - low) * part).exp().round() as usize;
        fs::write(
            folder.join(number.to_string()),
            bytes(size, seed + number as u64),
        )?;
    }
    Ok(())
}

/// Bytes that follow from a seed, every value among them.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Rng::new(seed);
    (0..count).map(|_| random.below(256) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_sizes_and_bytes() {
        let folder = tempfile::tempdir().expect("room");
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        many(&one, 20, 100, 10_000, 7).expect("room");
        many(&other, 20, 100, 10_000, 7).expect("room");
        of_sizes(&one, &[2048], 1).expect("room");
        let read = |place: &Path, name: &str| fs::read(place.join(name)).expect("written");
        let mut sizes = Vec::new();
        for number in 0..20 {
            let name = number.to_string();
            assert_eq!(read(&one, &name), read(&other, &name));
            sizes.push(read(&one, &name).len());
        }
        assert!(sizes.iter().all(|size| (100..=10_000).contains(size)));
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() > 10);
        assert_eq!(read(&one, "2048").len(), 2048);
    }
}
