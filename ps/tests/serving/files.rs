//! Tests the files in the memory of two ps tasks: which peers may use them, what hostile requests cause, and
//! that a save is on both tasks.

use pushpull_messages::checkpoint::MEMORY;
use pushpull_ps::PeerTransport;

use super::*;

/// Starts two ps tasks that dial each other. The first one is `Task`.
async fn two(bytes_max: u64, chief_lost_after: Duration) -> [Task; 2] {
    let addresses =
        [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1", "p:2"]), (JobName::Worker, vec!["w:1"])];
    let cluster = ClusterSpec::new(addresses).unwrap();
    let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
    let start = async |index: u32| {
        let listener = transport.listen(["p:1", "p:2"][index as usize]).await.unwrap();
        let config = PsConfig {
            shards: 2,
            chief_lease: CHIEF_LEASE,
            chief_lost_after,
            peers: Some(PeerTransport::new(Arc::clone(&transport))),
            memory_checkpoint_bytes_max: bytes_max,
            ..PsConfig::default()
        };
        let identity = identity(&cluster, TaskId::ps(index));
        let ps = Ps::start(config, identity, listener, &BufferPool::default()).unwrap();
        let (interrupt, view) = (CancellationToken::new(), ps.view());
        let ended = actix_rt::spawn(ps.run(interrupt.clone()));
        let (transport, cluster) = (Arc::clone(&transport), cluster.clone());
        Task { transport, cluster, interrupt, view, ended }
    };
    [start(0).await, start(1).await]
}

async fn access(
    peer: &Connection,
    access: FileAccess,
    piece: &[u8],
) -> Result<(FilesResult, Vec<u8>), Refusal> {
    let payload = match piece {
        [] => Payload::EMPTY,
        piece => Payload::new(vec![Segment::whole(Arc::new(Buffer::copied(piece)))]),
    };
    match peer.call::<FilesAccessed>(AccessFiles { access }, payload).await {
        Ok((FilesAccessed { result }, found)) => {
            Ok((result, found.segments().iter().flat_map(|found| found.as_bytes()).copied().collect()))
        }
        Err(CallError::Refused { refusal, .. }) => Err(refusal),
        Err(other) => panic!("{other}"),
    }
}

fn put(upload: u64, offset: u64, total: u64) -> FileAccess {
    FileAccess::Put { name: "step-1/f".into(), upload, offset, total }
}

fn get(offset: u64, bytes: u64) -> FileAccess {
    FileAccess::Get { name: "step-1/f".into(), offset, bytes }
}

fn list() -> FileAccess {
    FileAccess::List { folder: String::new() }
}

#[test]
fn only_the_chief_and_ps_may_access_files() {
    run(async {
        let [task, _second] = two(1 << 20, PATIENCE).await;
        let (chief, ps) = (task.chief().await, task.call(TaskId::ps(1)).await);
        for (number, peer) in (1..).zip([&chief, &ps]) {
            assert_eq!(access(peer, put(number, 0, 3), b"abc").await.unwrap().0, FilesResult::Done);
            let found = access(peer, get(1, 9), &[]).await.unwrap();
            assert_eq!(found, (FilesResult::Found { bytes: 3 }, b"bc".to_vec()));
        }
        let worker = task.call(TaskId::worker(0)).await;
        for (asked, piece) in [(put(3, 0, 3), &b"abc"[..]), (get(0, 3), &[]), (list(), &[])] {
            let refusal = access(&worker, asked, piece).await.unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Malformed);
            assert_eq!(refusal.reason, "ps/0 does not accept AccessFiles from worker/0");
        }
        let own = Identity { incarnation: Incarnation(2), ..identity(&task.cluster, TaskId::CHIEF) };
        let other = dial(&*task.transport, "p:1", &own, TaskId::ps(0), Patience::of(PATIENCE)).await.unwrap();
        let delete = FileAccess::Delete { name: "step-1/f".into() };
        assert_eq!(access(&other, delete.clone(), &[]).await.unwrap_err().code, RefusalCode::Term);
        assert_eq!(access(&ps, delete, &[]).await.unwrap().0, FilesResult::Done);
        assert_eq!(access(&ps, get(0, 3), &[]).await.unwrap().0, FilesResult::Missing);
    });
}

#[test]
fn hostile_pieces_take_no_memory() {
    run(async {
        let [task, _second] = two(10_000, PATIENCE).await;
        let ps = task.call(TaskId::ps(1)).await;
        for total in [10_000, u64::MAX] {
            let refusal = access(&ps, put(1, 0, total), b"abc").await.unwrap_err();
            assert!(
                refusal.reason.contains("does not fit: checkpoints already take 0 of 10000"),
                "{refusal}"
            );
        }
        access(&ps, put(2, 0, 9), b"abc").await.unwrap();
        for (asked, piece) in [(put(2, 4, 9), &b"abc"[..]), (put(2, 8, 9), b"a"), (put(3, 3, 9), b"abc")] {
            let refusal = access(&ps, asked, piece).await.unwrap_err();
            assert!(refusal.reason.contains("send the file again from its start"), "{refusal}");
        }
        assert_eq!(access(&ps, list(), &[]).await.unwrap().0, FilesResult::Listed(vec![]));
        // The piece may arrive twice. The upload ends with its last byte.
        for (offset, piece) in [(0, b"abc"), (3, b"def"), (3, b"def"), (6, b"ghi"), (6, b"ghi")] {
            access(&ps, put(2, offset, 9), piece).await.unwrap();
        }
        assert_eq!(access(&ps, get(0, 99), &[]).await.unwrap().1, b"abcdefghi");
        let far = access(&ps, get(u64::MAX, 99), &[]).await.unwrap();
        assert_eq!(far, (FilesResult::Found { bytes: 9 }, vec![]));
    });
}

#[test]
fn a_shard_that_is_saved_in_memory_is_on_two_tasks() {
    run(async {
        let [task, second] = two(1 << 20, PATIENCE).await;
        let chief = task.chief().await;
        create(&chief, &StartSpec::Initialise).await.unwrap();
        let save = Save { shard: 1, store: MEMORY.into(), checkpoint: name(0), at: Version(0) };
        let (saved, _) = chief.call::<Saved>(save.clone(), Payload::EMPTY).await.unwrap();
        let SaveResult::Written { file, .. } = saved.result else { panic!("{saved:?}") };
        let path = name(0).file(&file.name);
        let mut contents = Vec::new();
        for address in ["p:1", "p:2"] {
            let to = TaskId::ps(u32::from(address == "p:2"));
            let own = identity(&task.cluster, TaskId::ps(1 - to.index));
            let peer = dial(&*task.transport, address, &own, to, Patience::of(PATIENCE)).await.unwrap();
            let listed = vec![ListedFile { name: path.clone(), bytes: file.bytes }];
            assert_eq!(access(&peer, list(), &[]).await.unwrap().0, FilesResult::Listed(listed));
            let whole = FileAccess::Get { name: path.clone(), offset: 0, bytes: 1 << 20 };
            contents.push(access(&peer, whole, &[]).await.unwrap().1);
        }
        assert_eq!(contents[0], contents[1]);
        assert_eq!(contents[0].len() as u64, file.bytes);
        // Without the second task, the save fails, and the shard trains on.
        second.interrupt.cancel();
        second.ended().await.unwrap_err();
        let save = Save { shard: 0, ..save };
        let (saved, _) = chief.call::<Saved>(save, Payload::EMPTY).await.unwrap();
        let SaveResult::Failed(reason) = saved.result else { panic!("{saved:?}") };
        assert!(reason.contains("1 task(s) keep it, expected 2"), "{reason}");
    });
}

#[test]
fn two_ps_that_only_have_each_other_end() {
    run(async {
        let [task, _second] = two(1 << 20, Duration::from_millis(50)).await;
        let (chief, _peer) = (task.chief().await, task.call(TaskId::ps(1)).await);
        drop(chief);
        let error = task.ended().await.unwrap_err();
        assert!(matches!(error, PsError::ChiefLost), "{error}");
    });
}
