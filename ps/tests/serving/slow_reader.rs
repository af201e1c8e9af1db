//! Tests the memory of a ps task to which many fast workers push, while a reader takes its replies slowly.

use std::cell::Cell;
use std::rc::Rc;

use pushpull_transport::{ReconnectingClient, RetryConfig, Tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::memory::{BYTES_BOUND, CLIENTS, PUSHES, TcpTask, VALUES_BYTES};
use super::*;

/// The slow reader takes this number of bytes, and then lets the others go on for this number of turns.
const TURN_BYTES: usize = 16 << 10;
const TURNS: usize = 16;
/// The size of the kernel's buffer for what the slow reader has not taken.
const SOCKET_BYTES: u32 = 64 << 10;

/// Opens a way for one connection to the task at `target`, on which replies pass slowly. Returns its address.
async fn slow_way(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, target) = (listener.local_addr().unwrap().to_string(), target.parse().unwrap());
    actix_rt::spawn(async move {
        let (client, _) = listener.accept().await?;
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(SOCKET_BYTES)?;
        let task = socket.connect(target).await?;
        let ((mut asks, mut takes), (mut replies, mut hears)) = (client.into_split(), task.into_split());
        actix_rt::spawn(async move { tokio::io::copy(&mut asks, &mut hears).await });
        let mut buffer = vec![0; TURN_BYTES];
        loop {
            let bytes = replies.read(&mut buffer).await?;
            if bytes == 0 {
                return std::io::Result::Ok(());
            }
            takes.write_all(&buffer[..bytes]).await?;
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        }
    });
    address
}

fn pull(task: &TcpTask, at: PullAt) -> Pull {
    let (epoch, placement_digest) = (PlacementEpoch(1), task.placement.digest());
    Pull { shard: 0, epoch, placement_digest, at, averages: false }
}

/// Connects a worker that sends a push again if the shard asks for it, and joins the job.
async fn join(task: &TcpTask, worker: u32, address: &str) -> ReconnectingClient {
    let identity = identity(&task.cluster, TaskId::worker(worker));
    let (tcp, patience, retry) = (Arc::new(Tcp::default()), Patience::of(PATIENCE), RetryConfig::default());
    let client = ReconnectingClient::connect(tcp, address, &identity, TaskId::ps(0), patience, retry).await;
    let client = client.unwrap();
    client.call::<Pulled>(pull(task, PullAt::Join), Payload::EMPTY).await.unwrap();
    client
}

/// 64 workers push and read all replies, as fast as they can.
#[test]
fn a_slow_reader_beside_fast_workers_keeps_few_versions() {
    run(async {
        let task = Rc::new(TcpTask::start().await);
        let chief = task.call(TaskId::CHIEF).await;
        task.create(&chief, 1).await;
        let address = slow_way(&task.address).await;
        let (reads, peak) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (reader, read) = (Rc::clone(&task), Rc::clone(&reads));
        let reading = actix_rt::spawn(async move {
            let client = join(&reader, CLIENTS, &address).await;
            loop {
                let pull = pull(&reader, PullAt::Latest);
                let (_, values) = client.call::<Pulled>(pull, Payload::EMPTY).await.unwrap();
                assert_eq!(values.bytes(), VALUES_BYTES);
                read.set(read.get() + 1);
            }
        });
        let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::zeroed(VALUES_BYTES)))]);
        let pushing = (0..CLIENTS).map(|worker| {
            let (task, gradient, peak) = (Rc::clone(&task), gradient.clone(), Rc::clone(&peak));
            actix_rt::spawn(async move {
                let client = join(&task, worker, &task.address).await;
                for number in 1..=PUSHES {
                    let push = task.push(worker, number);
                    let (pushed, _) = client.call::<Pushed>(push, gradient.clone()).await.unwrap();
                    assert_eq!(pushed.verdict, Verdict::Applied);
                    peak.set(task.bytes().max(peak.get()));
                }
            })
        });
        for worker in pushing.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        // The reader is slow, and not stuck.
        while reads.get() == 0 {
            assert!(!reading.is_finished(), "the reader has failed");
            peak.set(task.bytes().max(peak.get()));
            tokio::task::yield_now().await;
        }
        let versions = peak.get() / VALUES_BYTES;
        assert!(peak.get() <= BYTES_BOUND, "{versions} versions in memory");
        reading.abort();
    });
}
