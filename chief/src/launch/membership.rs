//! Carries the chief's orders about workers to the shards: which incarnation may join, and which has left.
//! The coordinator gives the orders and learns when all shards have confirmed an appointment.

use std::collections::BTreeMap;
use std::rc::Rc;

use actix::Addr;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pushpull_messages::id::PlacementEpoch;
use tokio::sync::{Mutex, mpsc};

use super::ps_tasks::PsTasks;
use crate::coordinator::{Coordinator, JobEvent};
use crate::job::MembershipOrder;

/// Passes each order to all shards, with the placement epoch at which it was given. Returns when all orders
/// have been passed and no more will come. A shard that replies late delays only orders about the same
/// worker.
pub(crate) async fn tell_shards(
    ps: Rc<PsTasks>,
    mut orders: mpsc::UnboundedReceiver<(PlacementEpoch, MembershipOrder)>,
    coordinator: Addr<Coordinator>,
) {
    let (ps, coordinator) = (&ps, &coordinator);
    let mut pending = FuturesUnordered::new();
    // The orders about one worker reach every shard in the order of the decisions.
    let mut turns: BTreeMap<u32, Rc<Mutex<()>>> = BTreeMap::new();
    let mut open = true;
    while open || !pending.is_empty() {
        tokio::select! {
            biased;
            order = orders.recv(), if open => match order {
                Some((epoch, order)) => {
                    // The numbers follow the order of the coordinator's decisions.
                    let number = ps.next_appointment();
                    let (MembershipOrder::Leave(worker, _) | MembershipOrder::Appoint(worker, _)) = order;
                    let turn = Rc::clone(turns.entry(worker).or_default());
                    pending.push(async move {
                        let _turn = turn.lock().await;
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
