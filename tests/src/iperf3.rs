//! iperf3's clients.

/// Has `client` ask iperf3's server, and report a whole test in JSON. The server is busy with a
/// test for longer than that test's client, and refuses the next one meanwhile.
///
/// # Panics
/// When the report is not that of a whole test.
pub fn expect_whole_report(client: impl Fn() -> String) {
    let mut report = client();
    while report.contains("the server is busy") {
        report = client();
    }
    let is_whole = report.contains("\"sum_received\"") && !report.contains("\"error\"");
    assert!(is_whole, "{report}");
}
