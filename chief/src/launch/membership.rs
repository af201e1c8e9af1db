//! Carries the chief's orders about workers to the shards: which incarnation may join, and which has left.
//! The coordinator gives the orders and learns when all shards have confirmed an appointment.

use std::rc::Rc;

use actix::Addr;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pushpull_messages::id::PlacementEpoch;
use tokio::sync::mpsc;

use super::ps_tasks::PsTasks;
use crate::coordinator::{Coordinator, JobEvent};
use crate::job::MembershipOrder;

/// Passes each order to all shards, with the placement epoch at which it was given. Returns when all orders
/// have been passed and no more will come. A shard that replies late does not delay other orders.
pub(crate) async fn tell_shards(
    ps: Rc<PsTasks>,
    mut orders: mpsc::UnboundedReceiver<(PlacementEpoch, MembershipOrder)>,
    coordinator: Addr<Coordinator>,
) {
    let (ps, coordinator) = (&ps, &coordinator);
    let mut pending = FuturesUnordered::new();
    let mut open = true;
    while open || !pending.is_empty() {
        tokio::select! {
            biased;
            order = orders.recv(), if open => match order {
                Some((epoch, order)) => {
                    // The numbers follow the order of the coordinator's decisions.
                    let number = ps.next_appointment();
                    pending.push(async move {
                        match order {
                            MembershipOrder::Leave(worker, incarnation) => {
                                ps.leave(worker, incarnation, epoch).await;
                            }
                            MembershipOrder::Appoint(worker, incarnation) => {
                                if ps.appoint(worker, incarnation, number).await {
                                    coordinator.do_send(JobEvent::Appointed(worker, incarnation));
                                }
                            }
                        }
                    });
                }
                None => open = false,
            },
            Some(()) = pending.next() => {}
        }
    }
}
