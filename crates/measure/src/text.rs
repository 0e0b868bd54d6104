//! Formats numbers for readers.

use crate::stats::{Kind, Ratio};

/// A number with four significant digits and a decimal prefix: `101.2 k`.
pub fn prefixed(value: f64) -> String {
    let magnitude = value.abs();
    let (scaled, prefix) = match magnitude {
        m if m >= 1e9 => (value / 1e9, " G"),
        m if m >= 1e6 => (value / 1e6, " M"),
        m if m >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        0.0 => 0,
        m if m >= 1000.0 => 0,
        m if m >= 100.0 => 1,
        m if m >= 10.0 => 2,
        m if m >= 0.1 => 3,
        m if m >= 0.001 => 5,
        _ => 7,
    };
    format!("{scaled:.digits$}{prefix}")
}

/// A prefixed number without meaningless digits: `100 k`, not `100.0 k`.
pub fn short(value: f64) -> String {
    let text = prefixed(value);
    let (digits, prefix) = text.split_once(' ').unwrap_or((&text, ""));
    let digits = if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    };
    if prefix.is_empty() {
        digits.to_owned()
    } else {
        format!("{digits} {prefix}")
    }
}

/// A number with three significant digits, or a length in bytes.
pub fn number(value: f64, is_bytes: bool) -> String {
    match value {
        v if is_bytes && v >= 1048576.0 && v % 1048576.0 == 0.0 => format!("{}M", v / 1048576.0),
        v if is_bytes && v >= 1024.0 && v % 1024.0 == 0.0 => format!("{}K", v / 1024.0),
        v if v.fract() == 0.0 && v.abs() < 1e6 => format!("{v}"),
        v if v.abs() >= 1e6 => prefixed(v),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v if v.abs() >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// A sentence with a capital letter at its beginning.
pub fn capitalized(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next();
    first.map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// A ratio in words: `12.5x lower`, `2.50x higher`, and below a factor of 1.5 `+3.1 %`.
pub fn change(ratio: f64) -> String {
    Form::of(ratio).whole(ratio)
}

/// A ratio in words with its interval: `12.5x lower [10.0x, 14.3x]`, or with too few rounds for an
/// interval `12.5x lower (least to most 10.0x, 14.3x)`.
pub fn change_between(ratio: &Ratio) -> String {
    let form = Form::of_all(ratio);
    let whole = form.whole(ratio.value);
    let (mut low, mut high) = (form.part(ratio.low), form.part(ratio.high));
    if form == Form::Lower {
        std::mem::swap(&mut low, &mut high);
    }
    match ratio.interval {
        Kind::Confidence => format!("{whole} [{low}, {high}]"),
        Kind::Range if ratio.rounds == 1 => format!("{whole} (one round)"),
        Kind::Range => format!("{whole} (least to most {low}, {high})"),
    }
}

/// A ratio as the end of a sentence, with its interval: `12.5x lower than "kernel" (95 % interval
/// 10.0x to 14.3x)`, `3.1 % higher than "kernel" (one round)`.
pub fn than(ratio: &Ratio, base: &str) -> String {
    let form = Form::of_all(ratio);
    let whole = match form {
        Form::Percent => {
            let percent = (ratio.value - 1.0) * 100.0;
            let word = if percent < 0.0 { "lower" } else { "higher" };
            format!("{:.1} % {word}", percent.abs())
        }
        _ => form.whole(ratio.value),
    };
    let (mut low, mut high) = (form.part(ratio.low), form.part(ratio.high));
    if form == Form::Lower {
        std::mem::swap(&mut low, &mut high);
    }
    let sure = match ratio.interval {
        Kind::Confidence => format!("95 % interval {low} to {high}"),
        Kind::Range if ratio.rounds == 1 => "one round".to_owned(),
        Kind::Range => format!("least to most {low} to {high}"),
    };
    format!("{whole} than \"{base}\" ({sure})")
}

/// The form in which a ratio is written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Higher,
    Lower,
    Percent,
}

impl Form {
    fn of(ratio: f64) -> Form {
        match ratio {
            ratio if ratio >= TIMES_FROM => Form::Higher,
            // A ratio of zero is written as 100 % less, because no factor expresses it.
            ratio if ratio <= 1.0 / TIMES_FROM && ratio > 0.0 => Form::Lower,
            _ => Form::Percent,
        }
    }

    /// The form of a ratio and of both its bounds.
    fn of_all(ratio: &Ratio) -> Form {
        match Form::of(ratio.value) {
            Form::Lower if ratio.low <= 0.0 => Form::Percent,
            form => form,
        }
    }

    fn whole(self, ratio: f64) -> String {
        match self {
            Form::Higher => format!("{} higher", self.part(ratio)),
            Form::Lower => format!("{} lower", self.part(ratio)),
            Form::Percent => self.part(ratio),
        }
    }

    fn part(self, ratio: f64) -> String {
        match self {
            Form::Higher => times(ratio),
            Form::Lower => times(1.0 / ratio),
            Form::Percent => format!("{:+.1} %", (ratio - 1.0) * 100.0),
        }
    }
}

fn times(factor: f64) -> String {
    match factor {
        f if f >= 99.95 => format!("{f:.0}x"),
        f if f >= 9.995 => format!("{f:.1}x"),
        f => format!("{f:.2}x"),
    }
}

/// A date and time (UTC) from seconds since 1970.
pub fn date(unix_time: u64) -> String {
    let (days, seconds) = (unix_time / 86400, unix_time % 86400);
    // Howard Hinnant's civil_from_days: years begin in March, so that leap days come last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Larger changes are written as factors, smaller ones in percent.
const TIMES_FROM: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ratio;

    #[test]
    fn numbers_keep_four_digits() {
        let shown: Vec<String> = [0.0, 0.01234, 0.5, 33.359, 101_234.0, 2.4e6, 3.1e9, 9_999.0]
            .map(prefixed)
            .to_vec();
        let expected = [
            "0", "0.01234", "0.500", "33.36", "101.2 k", "2.400 M", "3.100 G", "9999",
        ];
        assert_eq!(shown, expected);
        assert_eq!(
            (short(100_000.0), short(2.5)),
            ("100 k".into(), "2.5".into())
        );
    }

    #[test]
    fn a_small_ratio_is_so_many_times_lower() {
        assert_eq!(change(0.08), "12.5x lower");
        assert_eq!(change(2.5), "2.50x higher");
        assert_eq!(change(1.031), "+3.1 %");
        assert_eq!(change(0.9), "-10.0 %");
    }

    #[test]
    fn nothing_is_no_number_of_times_lower() {
        assert_eq!(change(0.0), "-100.0 %");
        let of = |arms: [f64; 3]| ratio(&arms.map(|arm| (1.0, arm))).expect("rounds");
        assert_eq!(
            change_between(&of([0.0, 0.0, 0.5])),
            "-100.0 % (least to most -100.0 %, -50.0 %)"
        );
        assert_eq!(
            change_between(&of([0.0, 0.25, 0.5])),
            "-75.0 % (least to most -100.0 %, -50.0 %)"
        );
    }

    #[test]
    fn an_interval_is_said_in_the_words_of_its_median() {
        let eight = |low: f64, high: f64| -> Ratio {
            let step = (high - low) / 7.0;
            let rounds: Vec<(f64, f64)> =
                (0..8).map(|at| (1.0, low + step * f64::from(at))).collect();
            ratio(&rounds).expect("rounds")
        };
        assert_eq!(
            change_between(&eight(0.05, 0.15)),
            "10.0x lower [6.67x, 20.0x]"
        );
        assert_eq!(
            change_between(&eight(0.9, 1.1)),
            "+0.0 % [-10.0 %, +10.0 %]"
        );
        let few = ratio(&[(1.0, 2.0), (1.0, 3.0), (1.0, 2.5)]).expect("rounds");
        assert_eq!(
            change_between(&few),
            "2.50x higher (least to most 2.00x, 3.00x)"
        );
    }

    #[test]
    fn a_comparison_ends_a_sentence_the_right_way_round() {
        let six = |value: f64| ratio(&[(1.0, value); 6]).expect("rounds");
        assert_eq!(
            than(&six(0.5), "kernel"),
            "2.00x lower than \"kernel\" (95 % interval 2.00x to 2.00x)"
        );
        assert_eq!(
            than(&six(0.9), "kernel"),
            "10.0 % lower than \"kernel\" (95 % interval -10.0 % to -10.0 %)"
        );
        let one = ratio(&[(1.0, 1.031)]).expect("a round");
        assert_eq!(
            than(&one, "kernel"),
            "3.1 % higher than \"kernel\" (one round)"
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_445_999), "2026-11-23 14:59 UTC");
    }
}
