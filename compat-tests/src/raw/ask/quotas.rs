//! Client quotas, and what a producer is told of them.

use anyhow::{Context, Result, bail};

use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::equal;
use crate::raw::stage::time;
use crate::raw::wire::W;

/// An entity: kinds with names, none for the default.
pub type Parts<'a> = &'a [(&'a str, Option<&'a str>)];

impl Connection {
    /// AlterClientQuotas version 0 of one entity: the error code.
    pub fn alter_quotas(
        &mut self,
        entity: Parts<'_>,
        ops: &[(&str, Option<f64>)],
        validate: bool,
    ) -> Result<i16> {
        let mut body = W::new().array(1).array(entity.len());
        for (kind, name) in entity {
            body = body.str(kind).nstr(*name);
        }
        body = body.array(ops.len());
        for (name, value) in ops {
            let bits = value.unwrap_or_default().to_be_bytes();
            body = body.str(name).raw(&bits).bool(value.is_none());
        }
        let mut answer = self.call(key::ALTER_CLIENT_QUOTAS, 0, &body.bool(validate))?;
        answer.i32()?;
        let entries = answer.each(|entry| {
            let error = entry.i16()?;
            entry.nstr()?;
            let parts = entry.each(|part| Ok((part.str()?, part.nstr()?)))?;
            Ok((error, parts.len()))
        })?;
        answer.end()?;
        match entries[..] {
            [(error, parts)] => equal("parts of the entity", parts, entity.len()).map(|()| error),
            _ => bail!("{} entries where one is due", entries.len()),
        }
    }

    /// Sets one quota, or takes it away.
    pub fn set_quota(&mut self, entity: Parts<'_>, name: &str, value: Option<f64>) -> Result<()> {
        equal(&format!("setting {name}"), self.alter_quotas(entity, &[(name, value)], false)?, 0)
    }

    /// Produce version 8 of a batch whose value is so long: error code and throttle time.
    pub fn produce_throttled(&mut self, topic: &str, partition: i32, bytes: usize) -> Result<(i16, i32)> {
        let records = Batch::of(&[&"x".repeat(bytes)], time()).encode()?;
        let mut answer = self.call(key::PRODUCE, 8, &Self::produce_body(-1, topic, partition, &records))?;
        let errors = answer.each(|topic| {
            topic.str()?;
            topic.each(|partition| {
                partition.i32()?;
                let error = partition.i16()?;
                partition.raw(24)?;
                partition.each(|record| {
                    record.i32()?;
                    record.nstr()
                })?;
                partition.nstr()?;
                Ok(error)
            })
        })?;
        let error = errors.into_iter().flatten().next().context("no partition")?;
        Ok((error, answer.i32()?))
    }
}
