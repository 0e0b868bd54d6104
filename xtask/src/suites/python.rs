//! CPython's own tests of everything that touches sockets, as Debian packages them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::run::{Program, Reading};
use crate::root;

/// Debian's package of the suite puts it beside the library.
const LIBRARY: &str = "/usr/lib/python3.11/test";
const INTERPRETER: &str = "/usr/bin/python3.11";
/// Longer than any of these tests takes on a core of its own.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Modules of `test` that use sockets or pass descriptors.
const MODULES: [&str; 33] = [
    "test_socket",
    "test_socketserver",
    "test_select",
    "test_selectors",
    "test_poll",
    "test_epoll",
    "test_asyncore",
    "test_asynchat",
    "test_ssl",
    "test_httplib",
    "test_httpservers",
    "test_ftplib",
    "test_smtplib",
    "test_smtpd",
    "test_poplib",
    "test_imaplib",
    "test_nntplib",
    "test_telnetlib",
    "test_urllib2_localnet",
    "test_xmlrpc",
    "test_docxmlrpc",
    "test_wsgiref",
    "test_subprocess",
    "test_logging",
    "test_timeout",
    "test_robotparser",
    "test_urllib",
    "test_urllib2",
    "test_os",
    "test_eintr",
    "test_signal",
    "test_threadsignals",
    "test_fork1",
];

/// Modules that take seconds: the selection for `make test`.
const QUICK: [&str; 10] = [
    "test_selectors",
    "test_epoll",
    "test_asyncore",
    "test_asynchat",
    "test_httplib",
    "test_ftplib",
    "test_poplib",
    "test_telnetlib",
    "test_asyncio.test_streams",
    "test_asyncio.test_sock_lowlevel",
];

/// Classes of `test._test_multiprocessing` about connections, in its three ways of starting.
const MULTIPROCESSING: [&str; 6] = [
    "WithProcessesTestListener",
    "WithProcessesTestListenerClient",
    "WithThreadsTestListenerClient",
    "WithProcessesTestPicklingConnections",
    "TestWait",
    "WithManagerTestRemoteManager",
];

/// A program for each module except those of asyncio; the quick selection may include asyncio.
pub(crate) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    is_installed()?;
    if is_quick {
        return Ok(QUICK.map(|module| program(module, &[module])).to_vec());
    }
    let mut programs = MODULES.map(|module| program(module, &[module])).to_vec();
    for start in ["fork", "spawn", "forkserver"] {
        let module = format!("test_multiprocessing_{start}");
        let classes = MULTIPROCESSING.map(|class| format!("{module}.{class}"));
        let classes: Vec<&str> = classes.iter().map(String::as_str).collect();
        programs.push(program(&module, &classes));
    }
    Ok(programs)
}

fn program(name: &str, tests: &[&str]) -> Program {
    let script = root().join("tests/scripts/python_suite.py");
    let mut command: Vec<OsString> = vec![INTERPRETER.into(), script.into()];
    command.extend(tests.iter().map(|test| format!("test.{test}").into()));
    Program {
        name: name.to_owned(),
        command,
        dir: root().to_owned(),
        environment: Vec::new(),
        reading: Reading::Journal,
        time_limit: TIME_LIMIT,
    }
}

/// A program for each module of `test.test_asyncio`.
pub(crate) fn asyncio(is_quick: bool) -> Result<Vec<Program>, String> {
    is_installed()?;
    if is_quick {
        return Ok(Vec::new());
    }
    let dir = Path::new(LIBRARY).join("test_asyncio");
    let entries = std::fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let name = name.strip_suffix(".py")?;
        name.starts_with("test_")
            .then(|| format!("test_asyncio.{name}"))
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    let programs = names.iter().map(|module| program(module, &[module]));
    Ok(programs.collect())
}

fn is_installed() -> Result<(), String> {
    if !Path::new(LIBRARY).join("test_socket.py").is_file() {
        return Err("libpython3.11-testsuite is not installed (make suites)".to_owned());
    }
    Ok(())
}
