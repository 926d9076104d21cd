//! Judges the charges at a gateway without deduplication.

use std::fmt;

use super::{Case, Deed, Finding, Promise, answer_by};
use crate::crash::{
    gateway::{Applied, Asked, Told},
    job::ARRIVES,
    record::Stored,
};
use lambda_idempotency_rehearsal::clock::millis;

impl Finding {
    /// Writes the numbers of a form whose effects are charges at a gateway.
    pub(in crate::crash) fn write_charges(
        &self,
        f: &mut fmt::Formatter<'_>,
        keys: u64,
        promise: Promise,
    ) -> fmt::Result {
        let second = self.effects.saturating_sub(keys);
        let Self { unknown, late, slow, happened, absent, not_known, .. } = self;
        writeln!(f, "  handlers that didn't know     {unknown:>7}")?;
        if promise == Promise::Unreconciled {
            return writeln!(
                f,
                "  second charges                {second:>7}  (each after a run without an answer)"
            );
        }
        writeln!(f, "  questions: happened           {happened:>7}")?;
        writeln!(f, "  questions: did not happen     {absent:>7}")?;
        writeln!(f, "  questions: not known yet      {not_known:>7}")?;
        writeln!(
            f,
            "  second charges                {second:>7}  (each after a question that came before the first)"
        )?;
        writeln!(f, "    the gateway was too late    {late:>7}")?;
        writeln!(f, "    this machine was too slow   {slow:>7}")
    }
}

impl Case {
    /// Judges the charges, and counts what the gateway was asked.
    pub(super) fn find_charges(&self, record: &Stored) -> Result<Finding, String> {
        let recorded = self.recorded_charge(record)?;
        let mut finding = self.asked_figures(record);
        let mut by_claim: Vec<&Applied> = self.log.applied.iter().collect();
        by_claim.sort_by_key(|applied| applied.charge.line.generation);
        if by_claim.windows(2).any(|pair| {
            let [earlier, later] = [pair[0], pair[1]].map(|applied| &applied.charge.line);
            earlier.generation == later.generation || earlier.run == later.run
        }) {
            return Err("a run charged twice".into());
        }
        match self.promise {
            Promise::Unreconciled => {
                for charge in
                    by_claim.iter().filter(|charge| charge.charge.line.run != recorded.charge.line.run)
                {
                    finding.slow += self.excused_without_question(charge)?;
                }
            }
            _ => {
                for (index, later) in by_claim.iter().enumerate().skip(1) {
                    let slow = self.excused_by_question(&by_claim[..index], later)?;
                    finding.slow += slow;
                    finding.late += 1 - slow;
                }
            }
        }
        Ok(finding)
    }

    /// Finds the charge whose receipt the record holds.
    fn recorded_charge(&self, record: &Stored) -> Result<&Applied, String> {
        let is_recorded = |applied: &&Applied| {
            serde_json::to_vec(&applied.charge.line.run)
                .is_ok_and(|own| Some(&own) == record.response.as_ref())
        };
        self.log.applied.iter().find(is_recorded).ok_or("the record's receipt isn't that of a charge".into())
    }

    /// Checks that every earlier charge was still on its way when the later run asked for it, and that it was on its way
    /// for longer than the function waits. Returns 1 if the gateway didn't delay it that long, so that the machine did.
    fn excused_by_question(&self, earlier: &[&Applied], later: &Applied) -> Result<u64, String> {
        let line = &later.charge.line;
        let is_no = |asked: &&Asked| asked.generation == line.generation && asked.told == Told::Absent;
        let Some(no) = self.log.asked.iter().find(is_no) else {
            return Err(format!(
                "run {} charged, although no question was told that there's no charge",
                line.run
            ));
        };
        let mut slow = 0;
        for charge in earlier {
            let run = &charge.charge.line.run;
            if charge.at < no.at {
                return Err(format!(
                    "run {} charged, although run {run} had charged before the question",
                    line.run
                ));
            }
            let on_the_way = charge.at.saturating_sub(charge.charge.sent_at);
            if on_the_way <= millis(ARRIVES) {
                return Err(format!(
                    "run {} charged, although the charge of run {run} was on its way for only {on_the_way} ms: the \
                     question came too soon",
                    line.run
                ));
            }
            slow = slow.max(u64::from(charge.delay <= ARRIVES));
        }
        Ok(slow)
    }

    /// Checks that a charge that isn't the recorded one is from a run that ended without an answer. Returns 1 if the run
    /// answered too late.
    fn excused_without_question(&self, charge: &Applied) -> Result<u64, String> {
        let line = &charge.charge.line;
        let delivery = self.deliveries.iter().find(|delivery| delivery.run == line.run);
        let delivery = delivery.ok_or(format!("no delivery started run {}", line.run))?;
        if delivery.deed == Deed::Killed || delivery.said.is_unknown() {
            return Ok(0);
        }
        if delivery.said_at >= answer_by(line) {
            return Ok(1);
        }
        Err(format!("run {} charged a second time, but it answered in time", line.run))
    }

    fn asked_figures(&self, record: &Stored) -> Finding {
        let charged = |run: &str| self.lines.iter().find(|line| line.run == run);
        let mut finding = Finding {
            effects: self.lines.len() as u64,
            later_claims: u64::from(record.attempt.saturating_sub(1)),
            ..Finding::default()
        };
        for delivery in &self.deliveries {
            finding.unknown += u64::from(delivery.said.is_unknown());
            if delivery.deed != Deed::Killed {
                continue;
            }
            match charged(&delivery.run) {
                None => finding.killed_before += 1,
                Some(line) if line.generation == record.generation => finding.killed_after += 1,
                Some(_) => {
                    finding.killed_in_the_gap += 1;
                    finding.crashes_in_the_gap += 1;
                }
            }
        }
        for asked in &self.log.asked {
            match asked.told {
                Told::Happened => finding.happened += 1,
                Told::Absent => finding.absent += 1,
                Told::NotKnownYet | Told::Nothing => finding.not_known += 1,
            }
        }
        finding
    }
}
