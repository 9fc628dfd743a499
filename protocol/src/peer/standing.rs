//! How far copies are, asked before somebody is promoted.

use super::wire::{In, Out, PeerError};
use crate::ids::{Generation, LogId, Offset, PartitionId};

/// The question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandingQuery {
    /// Which copies.
    pub partitions: Vec<PartitionId>,
}

/// The answers, in the order of the question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandingAnswers {
    /// One a partition.
    pub standings: Vec<Standing>,
}

/// How far one copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The partition.
    pub partition: PartitionId,
    /// The copy; none where there is none.
    pub log: Option<LogId>,
    /// The newest generation that it accepted.
    pub accepted: Generation,
    /// Its durable end.
    pub end: Offset,
    /// Whether part of what it promised may be missing.
    pub doubt: bool,
}

impl StandingQuery {
    pub(super) fn put(&self, out: &mut Out) -> Result<(), PeerError> {
        out.list("partitions", &self.partitions, |out, partition| {
            out.structure("partition", |out| out.partition(partition));
        });
        Ok(())
    }

    pub(super) fn take(input: &mut In) -> Result<StandingQuery, PeerError> {
        let partitions = input.list("partitions", 24, |input| {
            input.structure("partition").and_then(|mut fields| fields.partition())
        })?;
        Ok(StandingQuery { partitions })
    }
}

impl StandingAnswers {
    pub(super) fn put(&self, out: &mut Out) -> Result<(), PeerError> {
        out.list("standings", &self.standings, |out, standing| {
            out.structure("standing", |out| {
                out.partition(&standing.partition);
                out.option(standing.log, Out::log);
                out.generation(standing.accepted);
                out.offset(standing.end);
                out.bool(standing.doubt);
            });
        });
        Ok(())
    }

    pub(super) fn take(input: &mut In) -> Result<StandingAnswers, PeerError> {
        let standings = input.list("standings", 4 + 20 + 1 + 4 + 8 + 1, |input| {
            let mut fields = input.structure("standing")?;
            Ok(Standing {
                partition: fields.partition()?,
                log: fields.option("log id", |fields| fields.log("log id"))?,
                accepted: fields.generation("accepted generation")?,
                end: fields.offset("end")?,
                doubt: fields.bool("doubt")?,
            })
        })?;
        Ok(StandingAnswers { standings })
    }
}
