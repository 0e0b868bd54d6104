//! No import circle between the modules of a crate.
//!
//! A module is a file. It imports another module when a path in its code, in a `use` or elsewhere,
//! leads there. Names that a module only re-exports from modules inside itself (`pub use`) count as
//! paths to those modules. A module and those inside it may import each other: they are parts of
//! one unit. Test modules are ignored. The code is expected in rustfmt's format.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::links::files;

/// For each module, the modules that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Checks every `src` folder below `root`, except those of the tests, and prints circles. True when
/// there are none.
pub(crate) fn check(root: &Path) -> bool {
    let mut packages: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for path in files(root, &["rs"]) {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        let Some((package, file)) = name.split_once("/src/") else {
            continue;
        };
        if !package.starts_with("tests") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let modules = packages.entry(package.to_owned()).or_default();
            modules.push((file.to_owned(), text));
        }
    }
    let mut found = 0;
    for (package, sources) in &packages {
        for (module, imported) in in_circles(imports(sources)) {
            found += 1;
            println!("{package}: {module} imports {imported:?}");
        }
    }
    println!("{found} modules in circles, in {} packages", packages.len());
    found == 0
}

fn imports(sources: &[(String, String)]) -> Imports {
    // `a/b.rs` and `a/b/mod.rs` are `a::b`; the crate's root has no name.
    let name = |file: &str| match file.trim_end_matches(".rs").trim_end_matches("/mod") {
        "lib" | "main" => String::new(),
        name => name.replace('/', "::"),
    };
    let codes: BTreeMap<String, String> = sources
        .iter()
        .filter(|(file, _)| !file.ends_with("tests.rs"))
        .map(|(file, text)| (name(file), code(text)))
        .collect();
    let modules: BTreeMap<&str, Module> = codes
        .iter()
        .map(|(name, code)| (name.as_str(), Module::read(name, code, &codes)))
        .collect();
    let leads = |name: &str, paths: &[String]| {
        let mut to = BTreeSet::new();
        for path in paths {
            lead(path, &modules, &mut to);
        }
        to.retain(|to| !is_within(to, name) && !is_within(name, to));
        to
    };
    let imports = |(&name, module): (&&str, &Module)| (name.to_owned(), leads(name, &module.paths));
    modules.iter().map(imports).collect()
}

/// The code of a file, without comments and test items.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut is_test = false;
    for line in text.lines() {
        is_test |= line.starts_with("#[cfg(") && line.contains("test");
        if !is_test {
            let comment = line.match_indices("//").map(|(at, _)| at);
            let mut comment = comment.filter(|&at| line[..at].chars().all(char::is_whitespace));
            code += &line[..comment.next().unwrap_or(line.len())];
            code.push('\n');
        } else if !line.starts_with([' ', '#']) && line.ends_with([';', '}']) {
            is_test = false;
        }
    }
    code
}

/// The paths of one module, from the crate's root.
struct Module {
    paths: Vec<String>,
    /// Names that the module re-exports from modules inside itself.
    hands_on: BTreeMap<String, String>,
    /// Modules inside itself from which it re-exports every name.
    hands_on_all: Vec<String>,
}

impl Module {
    fn read(name: &str, code: &str, all: &BTreeMap<String, String>) -> Module {
        let mut aliases = BTreeMap::new();
        let mut module = Module {
            paths: Vec::new(),
            hands_on: BTreeMap::new(),
            hands_on_all: Vec::new(),
        };
        let mut rest = String::new();
        for statement in code.split_inclusive(';') {
            let begins = statement.rfind("use ").filter(|&at| {
                let before = statement[..at].rsplit('\n').next().unwrap_or_default();
                before.trim().is_empty() || before.trim().starts_with("pub")
            });
            let Some(begins) = begins.filter(|_| statement.ends_with(';')) else {
                rest += statement;
                continue;
            };
            let is_public = statement[..begins].trim_end().ends_with(['b', ')']);
            rest += &statement[..begins];
            let tree = statement[begins + 4..].trim_end_matches(';');
            let tree = tree.replace(" as ", "=").replace([' ', '\n'], "");
            for path in expand(&tree) {
                let (path, alias) = path.split_once('=').unwrap_or((&path, ""));
                let path = path.trim_end_matches("::self");
                let last = path.rsplit("::").next().unwrap_or_default();
                let alias = if alias.is_empty() { last } else { alias };
                if let Some(path) = absolute(path, name, &aliases, all) {
                    if !is_public || path == name || !is_within(&path, name) {
                        module.paths.push(path.clone());
                    } else if let Some(inside) = path.strip_suffix("::*") {
                        module.hands_on_all.push(inside.to_owned());
                    } else {
                        module.hands_on.insert(alias.to_owned(), path.clone());
                    }
                    aliases.insert(alias.to_owned(), path);
                }
            }
        }
        let words = rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let paths = words.filter(|word| word.contains("::"));
        let paths = paths.filter_map(|path| absolute(path, name, &aliases, all));
        module.paths.extend(paths);
        module
    }
}

/// The paths of a `use`, each written out.
fn expand(tree: &str) -> Vec<String> {
    let Some((stem, inside)) = tree.split_once('{') else {
        return vec![tree.to_owned()];
    };
    let inside = inside.strip_suffix('}').unwrap_or(inside);
    let mut depth = 0;
    let parts = inside.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0 && c == ','
    });
    let parts = parts.filter(|part| !part.is_empty());
    parts
        .flat_map(|part| expand(&format!("{stem}{part}")))
        .collect()
}

/// `path`, as written in module `here`, relative to the crate's root; `None` for another crate.
fn absolute(
    path: &str,
    here: &str,
    aliases: &BTreeMap<String, String>,
    all: &BTreeMap<String, String>,
) -> Option<String> {
    let (mut base, mut rest) = (here, path);
    while let Some(up) = rest.strip_prefix("super::") {
        base = base.rsplit_once("::").map_or("", |(parent, _)| parent);
        rest = up;
    }
    if let Some(path) = path.strip_prefix("crate::") {
        return Some(path.to_owned());
    }
    let inside = rest.strip_prefix("self::").unwrap_or(rest);
    let joined = format!("{base}::{inside}");
    let joined = joined.trim_start_matches("::").to_owned();
    let (first, others) = path.split_once("::").unwrap_or((path, ""));
    if first == "super" || first == "self" {
        return Some(joined);
    }
    let child = format!("{here}::{first}");
    match aliases.get(first) {
        Some(known) => Some(format!("{known}::{others}")),
        None => all
            .contains_key(child.trim_start_matches("::"))
            .then_some(joined),
    }
}

/// Adds the modules to which a path from the crate's root may lead.
fn lead(path: &str, modules: &BTreeMap<&str, Module>, to: &mut BTreeSet<String>) {
    let (mut module, mut name) = (path, "");
    while !modules.contains_key(module) {
        let Some((parent, last)) = module.rsplit_once("::") else {
            return;
        };
        (module, name) = (parent, last);
    }
    let it = &modules[module];
    if let Some(from) = it.hands_on.get(name) {
        return lead(from, modules, to);
    }
    to.insert(module.to_owned());
    for inside in it.hands_on_all.iter().filter(|_| !name.is_empty()) {
        lead(&format!("{inside}::{name}"), modules, to);
    }
}

/// True when `part` is the module `whole` or inside it.
fn is_within(part: &str, whole: &str) -> bool {
    let rest = part.strip_prefix(whole);
    whole.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Removes modules that import no other, and modules that no other imports, until none are left.
fn in_circles(mut imports: Imports) -> Imports {
    loop {
        let before = imports.len();
        let here: BTreeSet<String> = imports.keys().cloned().collect();
        let imported: BTreeSet<String> = imports.values().flatten().cloned().collect();
        imports.retain(|module, others| {
            others.retain(|other| here.contains(other));
            imported.contains(module) && !others.is_empty()
        });
        if imports.len() == before {
            return imports;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(sources: &[(&str, &str)]) -> Vec<String> {
        let owned = |&(file, text): &(&str, &str)| (file.to_owned(), text.to_owned());
        let sources: Vec<_> = sources.iter().map(owned).collect();
        in_circles(imports(&sources)).into_keys().collect()
    }

    #[test]
    fn circles_are_found_however_they_are_written() {
        let b = "use crate::{\n    x,\n    c::{self, C},\n};\nfn f() { c::g() }";
        for c in [
            "use super::b::f;",
            "fn g() { crate::b::f() }",
            "use crate::b as d;\ntype T = d::F;",
        ] {
            assert_eq!(
                circles_of(&[("lib.rs", "mod b;"), ("b.rs", b), ("c.rs", c)]),
                ["b", "c"]
            );
        }
    }

    #[test]
    fn names_that_are_handed_on_lead_to_where_they_come_from() {
        let b = "mod c;\nmod d;\npub(crate) use c::C;\npub use self::d::{D as E};";
        let (c, d) = ("use super::d::D;", "use crate::a::A;");
        let with = |a| circles_of(&[("a.rs", a), ("b/mod.rs", b), ("b/c.rs", ""), ("b/d.rs", d)]);
        assert_eq!(with("use crate::b::C;"), [""; 0]);
        assert_eq!(with("use crate::b::E;"), ["a", "b::d"]);
        assert_eq!(with("use crate::b::F;"), [""; 0]);
        let all = [
            ("a.rs", "use crate::b::F;"),
            ("b.rs", "pub use d::*;"),
            ("b/d.rs", d),
        ];
        assert_eq!(circles_of(&all), ["a", "b::d"]);
        assert_eq!(
            circles_of(&[("a.rs", ""), ("b.rs", b), ("b/c.rs", c), ("b/d.rs", d)]),
            [""; 0]
        );
    }

    #[test]
    fn comments_and_tests_make_none() {
        let a = "// use crate::b::B;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
        assert_eq!(
            circles_of(&[("a.rs", a), ("b.rs", "use crate::a::A;")]),
            [""; 0]
        );
    }
}
