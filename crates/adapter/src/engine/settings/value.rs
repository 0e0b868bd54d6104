//! Values that several settings have: addresses, numbers, switches, algorithms.

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use toehold_tcp::CongestionControl;

pub(super) fn address(value: &str) -> Result<IpAddr, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is not an address"))
}

/// A number within bounds; `what` says what it is to be.
pub(super) fn number<T: FromStr + PartialOrd + Display>(
    value: &str,
    what: &str,
    bounds: RangeInclusive<T>,
) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| bounds.contains(number));
    let (least, most) = (bounds.start(), bounds.end());
    number.ok_or_else(|| format!("`{value}` is not a {what} ({least} to {most})"))
}

pub(super) fn switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{value}` is neither on nor off")),
    }
}

/// Algorithms by their names on Linux.
const CONGESTION_CONTROLS: [(&str, CongestionControl); 4] = [
    ("cubic", CongestionControl::Cubic),
    ("reno", CongestionControl::NewReno),
    ("dctcp", CongestionControl::Dctcp),
    ("bbr", CongestionControl::Bbr),
];

pub(super) fn congestion(value: &str) -> Result<CongestionControl, String> {
    let found = CONGESTION_CONTROLS.iter().find(|(name, _)| *name == value);
    let names = || CONGESTION_CONTROLS.map(|(name, _)| name).join(", ");
    found
        .map(|(_, control)| *control)
        .ok_or_else(|| format!("`{value}` is not a congestion control: {}", names()))
}

/// As [`super::Draft::set`] takes it.
pub(in crate::engine) fn name_of(control: CongestionControl) -> &'static str {
    let found = CONGESTION_CONTROLS.iter().find(|(_, one)| *one == control);
    found.map_or("unknown", |(name, _)| name)
}
