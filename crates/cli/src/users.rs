//! Users, by their names.

use std::collections::HashMap;
use std::sync::OnceLock;

/// A user's name as `/etc/passwd` has it, else the number. Other services of names are not asked:
/// they may take seconds.
pub(crate) fn name(uid: u32) -> String {
    static NAMES: OnceLock<HashMap<u32, String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| names(&std::fs::read_to_string(PASSWD).unwrap_or_default()));
    names.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
}

fn names(passwd: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in passwd.lines() {
        let mut fields = line.split(':');
        let name = fields.next().unwrap_or_default();
        if let Some(uid) = fields.nth(1).and_then(|uid| uid.parse().ok()) {
            names.entry(uid).or_insert_with(|| name.to_owned());
        }
    }
    names
}

const PASSWD: &str = "/etc/passwd";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_number_counts() {
        let names = names("root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:\nnobody:x:65534:1::/:\n+\nx:y\n");
        assert_eq!(names.get(&0).map(String::as_str), Some("root"));
        assert_eq!(names.get(&65534).map(String::as_str), Some("nobody"));
        assert_eq!(names.len(), 2);
    }
}
