//! The operator's rules, applied to connections.
//!
//! The rules are applied when both ends of a connection are known, because an earlier rule may
//! match only the other end. Two ends that a rule keeps on the kernel wait in the registry, like
//! ends without a partner, and need no region. When the rules change, existing channels that are
//! now forbidden use their carriers, as during a packet capture.

use super::connection::Connection;
use super::{Daemon, ReloadRules};
use crate::registry::{Address, End, TableId, Tuple};
use crate::rules::{Program, Rule, Side};
use crate::tables::MappedTable;
use toehold_channel::table::WaitMode;

impl Daemon {
    /// Reads the rules again and applies them to all connections. If the rules are wrong, nothing
    /// changes.
    pub(super) fn reload_rules(&mut self) {
        let Some(ReloadRules(read)) = self.options.reload_rules.clone() else {
            return;
        };
        match read() {
            Err(cause) => self.log.answer(&format!("rules are unchanged: {cause}")),
            Ok(rules) => {
                let count = rules.len();
                self.options.rules = rules;
                self.follow_rules();
                self.log.answer(&format!("reloaded: {count} rules"));
            }
        }
    }

    fn follow_rules(&mut self) {
        self.registry.reconsider();
        self.recount_budgets();
        let own = self.engine_tables();
        let tables = self.tables.iter().map(|(id, _)| id);
        let tables: Vec<TableId> = tables.filter(|id| !own.contains(id)).collect();
        for id in tables {
            self.yield_table(id);
            self.store_program_options(id);
            self.tables.call_attention(id);
        }
    }

    /// Stores the rules' settings of programs in a family's table. The caller then calls the
    /// family's attention.
    pub(super) fn store_program_options(&self, id: TableId) {
        if let Some(table) = self.tables.get(id) {
            table.set_wait_by_rule(self.wait_rule(id).map(|(_, mode)| mode));
            table.set_express_by_rule(self.express_rule(id).map(|(_, is_on)| is_on));
        }
    }

    /// The wait mode that a rule sets for a family, and the rule.
    pub(super) fn wait_rule(&self, id: TableId) -> Option<(&Rule, WaitMode)> {
        self.options.rules.wait(&self.family(id))
    }

    /// Whether a rule sets express for a family, and the rule.
    pub(super) fn express_rule(&self, id: TableId) -> Option<(&Rule, bool)> {
        self.options.rules.express(&self.family(id))
    }

    /// The processes of a family, if a rule needs them.
    fn family(&self, id: TableId) -> Vec<Program> {
        let table = self.tables.get(id);
        let Some(table) = table.filter(|_| self.options.rules.has_program_option_rule()) else {
            return Vec::new();
        };
        let members = self.clients.values().filter(|it| it.table == Some(id));
        members.map(|it| program(table, Some(it))).collect()
    }

    /// The rule that keeps two ends on the kernel.
    pub(super) fn rule_against(&self, ends: [End; 2]) -> Option<&Rule> {
        let rules = &self.options.rules;
        if rules.is_empty() || self.is_engines(ends) {
            return None;
        }
        rules.against(&self.sides(ends))
    }

    /// Two ends, as rules see them.
    pub(super) fn sides(&self, ends: [End; 2]) -> Vec<Side> {
        ends.iter().filter_map(|&end| self.side(end)).collect()
    }

    /// The rule that keeps the connection of an end on the kernel. `None` while the other end is
    /// not known.
    pub(super) fn rule_of(&self, end: End) -> Option<&Rule> {
        let other = self.other_end(end)?;
        self.rule_against([end, other])
    }

    /// Both ends of a connection, or the known one.
    pub(super) fn ends_of_connection(&self, end: End) -> Vec<Side> {
        let ends = [Some(end), self.other_end(end)];
        let ends = ends.into_iter().flatten();
        ends.filter_map(|end| self.side(end)).collect()
    }

    /// Whether one of two ends is the engine's. The engine has its own rules for such connections.
    pub(super) fn is_engines(&self, ends: [End; 2]) -> bool {
        ends.iter().any(|&end| {
            let owner = self.registry.owner(end);
            owner.is_some_and(|owner| self.engine_clients.contains(&owner))
        })
    }

    /// The other end of the connection: in its channel, or waiting together with this one.
    fn other_end(&self, end: End) -> Option<End> {
        let partner = self.registry.partner(end);
        partner.or_else(|| self.registry.met(end))
    }

    /// The name of the listening Unix socket, if a rule needs it: one of the two ends has that
    /// name.
    fn socket_of(&self, end: End, tuple: Tuple) -> Option<String> {
        if !self.options.rules.has_socket_name_rule() {
            return None;
        }
        let ends = [Some(end), self.other_end(end)].into_iter().flatten();
        let mut names = ends.filter_map(|end| {
            let (of_end, cookie) = self.registry.claim(end)?;
            let Address::Unix { inode } = of_end.local else {
                return None;
            };
            let diag = self.diag_of(self.registry.owner(end)?, tuple.netns)?;
            Some(diag.unix_socket(inode, cookie)?.name)
        });
        names.find(|name| !name.is_empty())
    }

    fn side(&self, end: End) -> Option<Side> {
        let (tuple, _) = self.registry.claim(end)?;
        let table = self.tables.get(end.table)?;
        let client = self.clients.get(&self.registry.owner(end)?);
        Some(Side {
            program: program(table, client),
            accepts: table.is_accepted(end.entry),
            tuple,
            socket: self.socket_of(end, tuple),
        })
    }
}

/// A program as rules see it: the name is from its family's table, the rest from the process.
fn program(table: &MappedTable, client: Option<&Connection>) -> Program {
    Program {
        name: table.program(),
        uid: client.map(|client| client.uid),
        unit: client.and_then(|client| client.unit.clone()),
    }
}
