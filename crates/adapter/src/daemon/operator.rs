//! Requests of the command line: ping, status, detach, attach.

use super::Daemon;
use super::connection::Outgoing;
use super::connections::Fault;
use crate::engine::Engine;
use crate::memfd;
use crate::regions::SharedFd;
use crate::registry::ClientId;
use crate::rules::Rule;
use crate::status;
use crate::tables;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::Reason;

impl Daemon {
    pub(super) fn handle_status(&mut self, id: ClientId) -> Result<(), Fault> {
        let engine = self.engine.as_ref().and_then(Engine::report);
        let engine = (engine, self.no_engine.clone());
        let no_witness = self.proving.no_witness.clone();
        let is_off = !self.options.across_namespaces;
        let refusal = no_witness.or(is_off.then(|| "--namespaces own".to_owned()));
        let processes = self.programs().filter(|client| client.is_open());
        let processes = processes.filter_map(|client| {
            let table = client.table?;
            Some(status::Client {
                pid: client.pid,
                own_pid: client.own_pid,
                uid: client.uid,
                table,
            })
        });
        let rules = status::RulesInWords {
            against: &|end| {
                let by_rule = self.rule_of(end).map(describe_rule);
                by_rule.or_else(|| self.describe_budget_rule(end))
            },
            wait: &|table| Some(self.wait_rule(table)?.0.origin()),
            express: &|table| Some(self.express_rule(table)?.0.origin()),
            are_namespaces_paired: self.options.is_system && refusal.is_none(),
        };
        let places = status::Places {
            diag: self.diag.as_ref(),
            runtime_dir: self.options.runtime_dir.as_path(),
            aside: self.aside.as_ref().map(|aside| &aside.threads),
        };
        let mut report = status::report(
            processes,
            &self.tables,
            &self.registry,
            &rules,
            engine,
            places,
        );
        if self.options.is_system {
            report.set_namespace_pairing(refusal);
        }
        let connections = report
            .processes
            .iter()
            .map(|p| p.connections.len())
            .sum::<usize>();
        match json_file(&report) {
            Ok(file) => self.answer(id, connections as u32, Some(SharedFd::new(file))),
            Err(error) => {
                self.log
                    .log_limited("memory", || format!("cannot report the status: {error}"));
                self.answer(id, 0, None)
            }
        }
    }

    pub(super) fn handle_command(
        &mut self,
        id: ClientId,
        message: &Message,
        kind: Kind,
    ) -> Result<(), Fault> {
        let mut count = 0;
        let own = self.engine_tables();
        for (id, table) in self.tables.iter().filter(|(id, _)| !own.contains(id)) {
            let matching = table.live().filter(|(_, entry)| {
                let pid = self.host_pid(id, entry.pid.load(Ordering::Relaxed));
                let fd = entry.fd.load(Ordering::Relaxed);
                (message.pid == 0 || message.pid == pid)
                    && (message.side == u32::MAX || message.side == fd)
            });
            let changed = matching.filter(|(_, entry)| match kind {
                Kind::Detach => tables::detach(entry),
                _ => tables::attach(entry),
            });
            count += changed.count() as u32;
        }
        if kind == Kind::Attach {
            self.show_all_to_captures();
        }
        for (id, _) in self.tables.iter() {
            // The programs at the other ends as well, because both directions have to come back.
            self.tables.call_attention(id);
        }
        self.log
            .log_limited("command", || format!("{kind:?}: {count} connections"));
        self.answer(id, count, None)
    }

    pub(super) fn answer(
        &mut self,
        id: ClientId,
        count: u32,
        file: Option<SharedFd>,
    ) -> Result<(), Fault> {
        let message = Message {
            pid: std::process::id(),
            side: count,
            ..Message::new(Kind::Answer)
        };
        let outgoing = Outgoing {
            message,
            descriptors: file.into_iter().collect(),
            offer: None,
        };
        self.send(id, outgoing)
    }
}

/// The reason why a rule keeps a connection on the kernel, in words.
fn describe_rule(rule: &Rule) -> String {
    format!("{}: {}", Reason::Policy.words(), rule.origin())
}

fn json_file(report: &status::Report) -> io::Result<OwnedFd> {
    let json = serde_json::to_vec(report)?;
    let file = File::from(memfd::create(c"toehold-status", json.len())?);
    file.write_all_at(&json, 0)?;
    Ok(file.into())
}
