//! A leader whose copy has stopped for good. It acknowledges nothing any more, and as long as this broker's session lives nobody
//! else would lead: the tenure is given up by the broker's word, since the copy's own machine is gone.
//!
//! That is as safe as the leader's death: whoever leads next is eligible, and holds everything below the mark. It names nobody
//! as level, so that candidates are asked, and the halted copy comes last. Where nobody else could lead the tenure stays:
//! what is below the mark can still be read.

use std::collections::BTreeSet;
use std::sync::Arc;

use felix_cluster::eligible::Report;
use felix_cluster::promotion;
use felix_cluster::state::Resigned;
use felix_cluster::view::View;
use felix_protocol::ids::{Generation, PartitionId};

use super::Reconciler;

impl Reconciler {
    /// Gives up the tenure at that generation, if the copy has halted in it. Returns whether it has.
    pub(super) fn give_up_halted(
        &mut self,
        view: &View,
        partition: PartitionId,
        generation: Generation,
    ) -> bool {
        let halted = self.partitions.led.halted_here(&partition);
        let Some(halted) = halted.filter(|halted| halted.generation == generation) else { return false };
        let (Some(state), Some(learned)) = (view.partition(&partition), view.learned(&partition)) else {
            return true;
        };
        if state.state.replicas.len() == 1 || !state.state.opened() {
            return true;
        }
        // Until somebody else leads: an heir may come back, and the report may come to nothing.
        self.retry.add(partition);
        if !promotion::has_heir(view, &state.state) {
            return true;
        }
        let mark = self.partitions.get(&partition).map_or(halted.position, |handle| handle.mark());
        let exposed = halted.position - mark;
        let partitions = Arc::clone(&self.partitions);
        let report = Report::Resigned(Resigned { end: halted.position, pairs: BTreeSet::new() });
        self.agent.report_then(partition, generation, report, learned, move |answer| match answer {
            Ok(_) => partitions.led.gave_up(&partition, generation, exposed),
            Err(error) => {
                tracing::warn!(%partition, %error, "giving a partition up was not noted; trying again")
            }
        });
        true
    }
}
