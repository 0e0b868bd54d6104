//! The RFCs' requirements and the places that implement and test them.
//!
//! A citation is at the branch that implements the requirement, as in s2n-quic:
//!
//! ```text
//! //= RFC 9293#3.8.6.1
//! //# Probing of zero (offered) windows MUST be supported (MUST-36).
//! ```
//!
//! A test has the line `//= type=test` between the two. The quotation may span several lines. It
//! may be the part of a sentence that has the key word, or several sentences. It must be in the
//! list of requirements (`crates/tcp/spec/requirements.toml`) word for word. Each MUST needs a
//! citation in the code and one in a test. A requirement without citations must be in
//! `exceptions.toml` beside the list, with a reason.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::links::files;

const REQUIREMENTS: &str = "crates/tcp/spec/requirements.toml";
const EXCEPTIONS: &str = "crates/tcp/spec/exceptions.toml";
/// Folders whose sources may contain citations.
const CITING: [&str; 3] = ["crates/tcp", "crates/link", "crates/adapter"];

/// The level of a requirement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Must,
    Should,
}

/// A sentence of an RFC, or a part of one.
#[derive(Debug)]
struct Requirement {
    rfc: u32,
    section: String,
    /// The number in RFC 9293, such as `MUST-36`; empty for other RFCs.
    number: String,
    level: Level,
    text: String,
    /// Where code and where tests cite it, as `file:line`.
    code: Vec<String>,
    tests: Vec<String>,
    is_excepted: bool,
}

/// A quotation in a source.
#[derive(Debug, PartialEq)]
struct Citation {
    line: usize,
    rfc: u32,
    section: String,
    is_test: bool,
    quote: String,
}

/// The reason why some requirements are cited nowhere.
#[derive(Debug)]
struct Exception {
    rfc: u32,
    /// The section, or one that contains it; empty for the whole RFC.
    section: String,
    number: String,
    /// Some words of the requirement.
    text: String,
    reason: String,
}

/// Compares the citations below `root` with the list, prints the report; true when code and a test
/// cite every MUST, or an exception names it, and every quotation is exact. `everything` lists the
/// requirements, too.
pub(crate) fn check(root: &Path, everything: bool) -> bool {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let mut faults = Vec::new();
    let mut requirements = requirements(&read(REQUIREMENTS), &mut faults);
    let exceptions = exceptions(&read(EXCEPTIONS), &mut faults);
    for folder in CITING {
        for path in files(&root.join(folder), &["rs"]) {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            for citation in citations(&name, &text, &mut faults) {
                credit(&mut requirements, &name, &citation, &mut faults);
            }
        }
    }
    except(&mut requirements, &exceptions, &mut faults);
    if everything {
        list(&requirements, &exceptions);
    }
    for requirement in &requirements {
        if let Some(missing) = requirement.missing() {
            faults.push(format!("{missing}: {requirement}"));
        }
    }
    report(&requirements);
    faults.iter().for_each(|fault| println!("{fault}"));
    println!("{} faults", faults.len());
    faults.is_empty() && !requirements.is_empty()
}

impl Requirement {
    fn is_cited(&self) -> bool {
        !self.code.is_empty() || !self.tests.is_empty()
    }

    /// The fault of a MUST that lacks its code or its test.
    fn missing(&self) -> Option<&'static str> {
        if self.level != Level::Must || self.is_excepted {
            return None;
        }
        match (self.code.is_empty(), self.tests.is_empty()) {
            (true, true) => Some("neither cited nor excepted"),
            (false, true) => Some("no test cites this"),
            (true, false) => Some("no code cites this"),
            (false, false) => None,
        }
    }

    /// Whether a quotation from the section contains this requirement, or is the essential part of
    /// it.
    fn is_in(&self, quote: &str) -> bool {
        let words: &[&str] = match self.level {
            Level::Must => &["MUST", "SHALL", "REQUIRED"],
            Level::Should => &["SHOULD", "RECOMMENDED"],
        };
        quote.contains(&self.text)
            || (self.text.contains(quote) && words.iter().any(|word| quote.contains(word)))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RFC {}#{} ", self.rfc, self.section)?;
        if !self.number.is_empty() {
            write!(f, "{} ", self.number)?;
        }
        write!(f, "{}", self.text)
    }
}

/// The list of requirements.
fn requirements(text: &str, faults: &mut Vec<String>) -> Vec<Requirement> {
    let mut found = Vec::new();
    for table in tables(text, "requirement", faults) {
        let field = |name| table.get(name).cloned().unwrap_or_default();
        let level = match field("level").as_str() {
            "MUST" => Level::Must,
            "SHOULD" => Level::Should,
            other => {
                faults.push(format!("{REQUIREMENTS}: no such level: {other}"));
                continue;
            }
        };
        found.push(Requirement {
            rfc: field("rfc").parse().unwrap_or_default(),
            section: field("section"),
            number: field("number"),
            level,
            text: field("text"),
            code: Vec::new(),
            tests: Vec::new(),
            is_excepted: false,
        });
    }
    found
}

/// The list of exceptions; each has a reason.
fn exceptions(text: &str, faults: &mut Vec<String>) -> Vec<Exception> {
    let mut found = Vec::new();
    for table in tables(text, "exception", faults) {
        let field = |name| table.get(name).cloned().unwrap_or_default();
        if field("reason").is_empty() {
            faults.push(format!("{EXCEPTIONS}: without a reason: {table:?}"));
        }
        found.push(Exception {
            rfc: field("rfc").parse().unwrap_or_default(),
            section: field("section"),
            number: field("number"),
            text: field("text"),
            reason: field("reason"),
        });
    }
    found
}

/// Reads an array of tables in the subset of TOML that we use: `[[name]]`, and keys with a number
/// or a string on one line.
fn tables(text: &str, name: &str, faults: &mut Vec<String>) -> Vec<BTreeMap<String, String>> {
    let mut found: Vec<BTreeMap<String, String>> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == format!("[[{name}]]") {
            found.push(BTreeMap::new());
            continue;
        }
        let pair = line.split_once(" = ").zip(found.last_mut());
        let value = pair.as_ref().and_then(|((_, value), _)| unquoted(value));
        match (pair, value) {
            (Some(((key, _), table)), Some(value)) => {
                table.insert(key.to_owned(), value);
            }
            _ => faults.push(format!("{name}s, line {}: not understood", number + 1)),
        }
    }
    found
}

/// A number unchanged, or a basic string without its quotation marks.
fn unquoted(value: &str) -> Option<String> {
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(value.to_owned());
    }
    let inside = value.strip_prefix('"')?.strip_suffix('"')?;
    Some(inside.replace("\\\"", "\"").replace("\\\\", "\\"))
}

/// The citations in one source.
fn citations(name: &str, text: &str, faults: &mut Vec<String>) -> Vec<Citation> {
    let mut found: Vec<Citation> = Vec::new();
    // Whether the previous line belongs to the last citation.
    let mut is_open = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = number + 1;
        if let Some(place) = line.strip_prefix("//= RFC ") {
            let parsed = place.split_once('#').and_then(|(rfc, section)| {
                Some((rfc.parse().ok()?, section.to_owned())).filter(|_| !section.is_empty())
            });
            is_open = parsed.is_some();
            match parsed {
                Some((rfc, section)) => found.push(Citation {
                    line: at,
                    rfc,
                    section,
                    is_test: false,
                    quote: String::new(),
                }),
                None => faults.push(format!("{name}:{at}: not `//= RFC NUMBER#SECTION`")),
            }
            continue;
        }
        let last = found.last_mut().filter(|_| is_open);
        match (last, line.strip_prefix("//# ")) {
            (Some(last), Some(words)) => {
                if !last.quote.is_empty() {
                    last.quote.push(' ');
                }
                last.quote.push_str(words.trim());
            }
            (Some(last), None) if line == "//= type=test" => last.is_test = true,
            (None, Some(_)) => faults.push(format!("{name}:{at}: a quotation without its source")),
            _ if line.starts_with("//=") || line.starts_with("//#") => {
                faults.push(format!("{name}:{at}: neither source nor quotation"));
            }
            _ => is_open = false,
        }
    }
    found
}

/// Records the places that cite a requirement.
fn credit(
    requirements: &mut [Requirement],
    name: &str,
    citation: &Citation,
    faults: &mut Vec<String>,
) {
    let at = format!("{name}:{}", citation.line);
    let mut is_known = false;
    for requirement in requirements.iter_mut() {
        let is_here = requirement.rfc == citation.rfc && requirement.section == citation.section;
        if !is_here || citation.quote.is_empty() || !requirement.is_in(&citation.quote) {
            continue;
        }
        is_known = true;
        let places = match citation.is_test {
            true => &mut requirement.tests,
            false => &mut requirement.code,
        };
        places.push(at.clone());
    }
    if !is_known {
        let (rfc, section) = (citation.rfc, &citation.section);
        faults.push(format!(
            "{at}: not in the list for RFC {rfc}#{section}: {}",
            citation.quote
        ));
    }
}

impl Exception {
    fn covers(&self, requirement: &Requirement) -> bool {
        let within = requirement.section.strip_prefix(&self.section);
        self.rfc == requirement.rfc
            && (self.section.is_empty()
                || within.is_some_and(|r| r.is_empty() || r.starts_with('.')))
            && (self.number.is_empty() || self.number == requirement.number)
            && requirement.text.contains(&self.text)
    }
}

/// Marks excepted requirements. An exception for an unknown requirement, or for a cited one, is a
/// fault.
fn except(requirements: &mut [Requirement], exceptions: &[Exception], faults: &mut Vec<String>) {
    for exception in exceptions {
        let mut is_needed = false;
        let covered = requirements.iter_mut().filter(|r| exception.covers(r));
        for requirement in covered.filter(|requirement| !requirement.is_cited()) {
            is_needed = true;
            requirement.is_excepted = true;
        }
        if !is_needed {
            faults.push(format!("{EXCEPTIONS}: excepts nothing: {exception:?}"));
        }
    }
}

/// Prints every requirement, with the places that cite it or the reason why none does.
fn list(requirements: &[Requirement], exceptions: &[Exception]) {
    for requirement in requirements {
        println!("{requirement}");
        requirement.code.iter().for_each(|at| println!("    {at}"));
        let tests = requirement.tests.iter();
        tests.for_each(|at| println!("    {at} (test)"));
        let mut reasons = exceptions.iter().filter(|e| e.covers(requirement));
        if let Some(exception) = reasons.next().filter(|_| requirement.is_excepted) {
            println!("    excepted: {}", exception.reason);
        }
    }
}

/// A table by RFC and level.
fn report(requirements: &[Requirement]) {
    let mut groups: BTreeMap<(u32, Level), Vec<&Requirement>> = BTreeMap::new();
    for requirement in requirements {
        let key = (requirement.rfc, requirement.level);
        groups.entry(key).or_default().push(requirement);
    }
    println!("RFC   level   all  code  tests  both  excepted  open");
    for ((rfc, level), group) in groups {
        let count = |is: &dyn Fn(&Requirement) -> bool| group.iter().filter(|r| is(r)).count();
        let (code, tests) = (
            |r: &Requirement| !r.code.is_empty(),
            |r: &Requirement| !r.tests.is_empty(),
        );
        println!(
            "{rfc:<5} {:<6} {:>4}  {:>4}  {:>5}  {:>4}  {:>8}  {:>4}",
            format!("{level:?}").to_uppercase(),
            group.len(),
            count(&code),
            count(&tests),
            count(&|r| code(r) && tests(r)),
            count(&|r| r.is_excepted),
            count(&|r| r.missing().is_some() || (!r.is_cited() && !r.is_excepted)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "
# A comment.
[[requirement]]
rfc = 1
section = \"2.3\"
number = \"MUST-1\"
level = \"MUST\"
text = \"It MUST say \\\"yes\\\" (MUST-1)\"

[[requirement]]
rfc = 1
section = \"2.3\"
level = \"SHOULD\"
text = \"and SHOULD go on.\"
";

    fn checked(source: &str, exceptions: &str) -> (bool, Vec<String>) {
        let dir = tempfile::tempdir().expect("room for a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            let folder = path.parent().expect("a name has a folder");
            std::fs::create_dir_all(folder).expect("writable");
            std::fs::write(path, text).expect("writable");
        };
        write(REQUIREMENTS, LIST);
        write(EXCEPTIONS, exceptions);
        write("crates/tcp/src/a.rs", source);
        let mut faults = Vec::new();
        citations("a.rs", source, &mut faults);
        (check(dir.path(), true), faults)
    }

    #[test]
    fn a_must_is_cited_by_code_and_by_a_test_or_excepted() {
        assert!(!checked("", "").0);
        let code = "//= RFC 1#2.3\n//# It MUST say\n//# \"yes\" (MUST-1)\n";
        assert!(!checked(code, "").0);
        let test = "    //= RFC 1#2.3\n    //= type=test\n    //# It MUST say\n";
        assert!(!checked(test, "").0);
        assert!(checked(&format!("{code}fn code() {{}}\n{test}"), "").0);
        let exception = "[[exception]]\nrfc = 1\nsection = \"2\"\nreason = \"because\"\n";
        assert!(checked("", exception).0);
        assert!(!checked("", &exception.replace("because", "")).0);
    }

    #[test]
    fn quotations_are_exact() {
        assert!(!checked("//= RFC 1#2.3\n//# It MUST not say \"yes\"\n", "").0);
        assert!(!checked("//= RFC 1#2.4\n//# It MUST say \"yes\"\n", "").0);
        assert!(!checked("//= RFC 1#2.3\n", "").0);
        // Without the key word the quotation states no requirement.
        assert!(!checked("//= RFC 1#2.3\n//# say \"yes\"\n", "").0);
        for wrong in ["//= RFC 1\n", "//# It MUST\n", "//= 1#2\n//# It MUST\n"] {
            assert!(!checked(wrong, "").1.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn a_quotation_of_a_whole_sentence_credits_its_parts() {
        let mut faults = Vec::new();
        let mut list = requirements(LIST, &mut faults);
        let source = "//= RFC 1#2.3\n//# It MUST say \"yes\" (MUST-1) and SHOULD go on.\n";
        for citation in citations("a.rs", source, &mut faults) {
            credit(&mut list, "a.rs", &citation, &mut faults);
        }
        assert!(faults.is_empty(), "{faults:?}");
        assert!(list.iter().all(Requirement::is_cited));
    }

    #[test]
    fn an_exception_without_a_use_is_a_fault() {
        let code = "//= RFC 1#2.3\n//# It MUST say \"yes\" (MUST-1)\n";
        let test = "//= RFC 1#2.3\n//= type=test\n//# It MUST say \"yes\" (MUST-1)\n";
        let must = &format!("{code}{test}");
        assert!(checked(must, "").0);
        let number = "[[exception]]\nrfc = 1\nnumber = \"MUST-1\"\nreason = \"because\"\n";
        assert!(!checked(must, number).0);
        let nothing = "[[exception]]\nrfc = 2\nreason = \"because\"\n";
        assert!(!checked(must, nothing).0);
    }
}
