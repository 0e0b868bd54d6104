//! The arms of a comparison.

use crate::options::PathChoice;

/// One of the things compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arm {
    /// Its name in the report: the path's, made unique.
    pub(crate) label: String,
    /// The path it runs on.
    pub(crate) path: PathChoice,
}

/// The arms of a comparison; the first is the base of all ratios. `host` is the base if it takes
/// part. With `control`, the base runs a second time as an arm of its own: its ratio to the base is
/// the noise floor.
pub(crate) fn arms(paths: &[PathChoice], control: bool) -> Vec<Arm> {
    let mut paths = paths.to_vec();
    if let Some(host) = paths.iter().position(|path| *path == PathChoice::Host) {
        paths[..=host].rotate_right(1);
    }
    let mut arms: Vec<Arm> = Vec::new();
    for path in &paths {
        let same = arms.iter().filter(|arm| arm.path == *path).count();
        let label = match same {
            0 => path.word().to_owned(),
            _ => format!("{} #{}", path.word(), same + 1),
        };
        arms.push(Arm { label, path: *path });
    }
    if control && let Some(base) = paths.first() {
        arms.push(Arm {
            label: format!("{} again", base.word()),
            path: *base,
        });
    }
    arms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_the_base_wherever_it_is_named() {
        let arms = arms(&[PathChoice::Direct, PathChoice::Host], false);
        let labels: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["host", "direct"]);
    }

    #[test]
    fn arms_of_one_path_have_names_of_their_own() {
        let arms = arms(&[PathChoice::Host, PathChoice::Host], true);
        let labels: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["host", "host #2", "host again"]);
    }
}
