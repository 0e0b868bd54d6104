//! The checks of the system adapter, and of the services that `toehold enable` has enabled.

use std::path::Path;

use toehold_adapter::client;

use super::{Check, NeededFor};
use crate::services;
use crate::status::Status;

/// All of these checks.
pub(super) fn all(runtime_dir: &Path) -> Vec<Check> {
    let mut checks = vec![system_adapter(runtime_dir), across_namespaces(runtime_dir)];
    let services = services::of_this_system();
    if services.is_empty() {
        let finding = "none is enabled";
        checks.push(check("service", finding).warn("toehold enable UNIT, then restart it"));
    }
    checks.extend(services.into_iter().map(|one| {
        let found = check("service", format!("{}: {}", one.name, one.sentence));
        match one.is_wanting {
            true => found.warn(format!("after a change: systemctl restart {}", one.name)),
            false => found,
        }
    }));
    checks
}

fn check(name: &'static str, finding: impl Into<String>) -> Check {
    Check::ok(name, NeededFor::Services, finding)
}

fn system_adapter(runtime_dir: &Path) -> Check {
    let name = "system adapter";
    match client::ping(runtime_dir) {
        Ok(_) => check(name, "serves all users"),
        Err(error) => check(name, error.to_string())
            .missing("services run on the kernel: systemctl enable --now toehold-adapter"),
    }
}

fn across_namespaces(runtime_dir: &Path) -> Check {
    let name = "network namespaces";
    let said = Status::ask(runtime_dir).and_then(|status| status.across_namespaces);
    match said.as_deref() {
        Some("yes") => check(name, "connections between them are paired"),
        Some(refusal) => {
            let why = refusal.strip_prefix("no: ").unwrap_or(refusal);
            check(
                name,
                format!("connections between them stay on the kernel: {why}"),
            )
            .warn("containers are accelerated only where they share a network namespace")
        }
        None => check(name, "unknown: no system adapter answers this user").warn("ask as root"),
    }
}
