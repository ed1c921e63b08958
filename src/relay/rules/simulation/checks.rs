//! What must hold, checked against what was written and what was delivered.

use std::collections::HashMap;

use crate::message::RowId;

/// What the application wrote.
#[derive(Default)]
pub(super) struct Written {
    pub(super) key: Option<String>,
    pub(super) scheduled: bool,

    /// The world may refuse it for long.
    pub(super) troubled: bool,
}

/// The judge of a run.
#[derive(Default)]
pub(super) struct Checks {
    committed: HashMap<RowId, Written>,
    by_key: HashMap<String, Vec<RowId>>,
    deliveries: HashMap<RowId, u32>,
    /// How often a row was in doubt, and so may have been sent once more.
    doubts: HashMap<RowId, u32>,
    seen: usize,
}

impl Checks {
    pub(super) fn committed(&mut self, id: RowId, written: Written) {
        if let Some(key) = &written.key {
            self.by_key.entry(key.clone()).or_default().push(id);
        }
        self.committed.insert(id, written);
    }

    pub(super) fn doubt(&mut self, id: RowId) {
        *self.doubts.entry(id).or_default() += 1;
    }

    /// Looks at what was delivered since the last look.
    pub(super) fn look(&mut self, delivered: &[RowId], quarantined: impl Fn(RowId) -> bool) {
        for id in &delivered[self.seen..] {
            let written = self.committed.get(id);
            let written = written.unwrap_or_else(|| panic!("P2: row {id} was never committed"));
            let count = self.deliveries.entry(*id).or_default();
            *count += 1;
            let doubts = self.doubts.get(id).copied().unwrap_or(0);
            assert!(
                *count <= 1 + doubts,
                "P4: row {id} delivered {count} times, {doubts} doubts"
            );
            if *count == 1 && !written.scheduled {
                self.in_order(*id, written, &quarantined);
            }
        }
        self.seen = delivered.len();
    }

    fn in_order(&self, id: RowId, written: &Written, quarantined: &impl Fn(RowId) -> bool) {
        let Some(key) = &written.key else { return };
        for earlier in self.by_key[key].iter().filter(|earlier| **earlier < id) {
            let delivered = self.deliveries.contains_key(earlier);
            let excused = self.committed[earlier].scheduled || quarantined(*earlier);
            assert!(
                delivered || excused,
                "P5: row {id} of {key} overtook row {earlier}"
            );
        }
    }

    /// Committed rows for which `expected` holds that were neither delivered nor quarantined.
    pub(super) fn missing(
        &self,
        quarantined: impl Fn(RowId) -> bool,
        expected: impl Fn(&Written) -> bool,
    ) -> Vec<RowId> {
        let missing = |(id, written): &(&RowId, &Written)| {
            expected(written) && !self.deliveries.contains_key(id) && !quarantined(**id)
        };
        let mut missing: Vec<RowId> = self
            .committed
            .iter()
            .filter(missing)
            .map(|(id, _)| *id)
            .collect();
        missing.sort_unstable();
        missing
    }

    pub(super) fn untroubled_keys(&self) -> impl Fn(&Written) -> bool + use<> {
        let troubled: std::collections::HashSet<String> = self
            .committed
            .values()
            .filter(|written| written.troubled)
            .filter_map(|written| written.key.clone())
            .collect();
        move |written: &Written| {
            let held = written
                .key
                .as_ref()
                .is_some_and(|key| troubled.contains(key));
            !written.troubled && !held
        }
    }
}
