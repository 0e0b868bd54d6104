//! Numbers for people, in at most five characters.

/// A count in at most five characters: `999`, `12.3k`, `4.56M`.
pub(super) fn count(value: u64) -> String {
    let value = value as f64;
    for (unit, letter) in [(1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')] {
        // Rounding may carry into the next unit: 999.95 k is 1.00 M.
        if value >= unit * 0.9995 && value >= 1000.0 {
            let scaled = value / unit;
            let digits = if scaled < 9.995 {
                2
            } else if scaled < 99.95 {
                1
            } else {
                0
            };
            return format!("{scaled:.digits$}{letter}");
        }
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_short() {
        let shown = [0, 999, 1000, 12_345, 999_499, 999_950, 4_560_000, u64::MAX].map(count);
        assert_eq!(
            shown,
            [
                "0",
                "999",
                "1.00k",
                "12.3k",
                "999k",
                "1.00M",
                "4.56M",
                "18446744T"
            ]
        );
    }
}
