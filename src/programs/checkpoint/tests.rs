//! Tests of the checkpoint tool on checkpoints that the tests write. For every placement, a model is
//! unchanged after it is exported and imported.

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use pushpull_messages::checkpoint::{BLOCK_BYTES, CheckpointName, FileSpec, Part, SavedTensorSpec};
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::{GlobalStep, Incarnation, PlacementEpoch, ShardId, VariableId, Version};
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::{GroupSpec, OptimizerSpec, RateSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::InitializerSpec;
use pushpull_storage::{
    Catalog, FORMAT, ManifestSpec, NewTensor, Store, read_header, read_piece, write_file,
};

use super::*;

const FILE: &str = "model.safetensors";

/// Returns a job whose model has these variables, given as pairs: the shape, and whether the variable is
/// trained.
fn job(variables: &[(Shape, bool)], average: Option<f32>, optimizer: OptimizerSpec) -> JobSpec {
    let mut g = GraphBuilder::new("several");
    let x = g.input("features", [1]);
    let mut loss = g.l2_loss(x);
    for (number, (shape, trained)) in variables.iter().enumerate() {
        let name = format!("layer{number}/kernel");
        let variable = match trained {
            true => g.variable(&name, shape.clone(), InitializerSpec::Zeros),
            false => g.untrained(&name, shape.clone(), InitializerSpec::Zeros),
        };
        let own = g.l2_loss(variable);
        loss = g.add(loss, own);
    }
    let points = || DatasetSpec::Linear { seed: 0, examples: 9, weights: vec![1.0], bias: 0.0, noise: 0.0 };
    let input = InputSpec::new(points(), points());
    JobSpec { average, optimizer, ..JobSpec::new(g.finish(loss, &[]).unwrap(), input, 100) }
}

fn name(step: u64) -> CheckpointName {
    CheckpointName { step: GlobalStep(step), life: Incarnation(9) }
}

fn bytes_of(numbers: &[f32]) -> Bytes {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into()
}

/// Returns a placement that splits every variable into at most `slices_max` slices and assigns the slices to
/// the shards round-robin.
fn placement(job: &JobSpec, shards: u32, slices_max: u64) -> Placement {
    let shards: Vec<ShardId> = (0..shards).map(|ps| ShardId::new(ps, 0)).collect();
    let mut slices: Vec<PlacedSlice> = Vec::new();
    for (variable, id) in job.graph.variables.iter().zip(0..) {
        let rows = variable.rows() as u64;
        let each = rows.div_ceil(slices_max.min(rows));
        for row in (0..rows).step_by(each as usize) {
            let slice = SliceSpec { variable: VariableId(id), row, rows: each.min(rows - row) };
            slices.push(PlacedSlice { slice, shard: shards[slices.len() % shards.len()] });
        }
    }
    Placement { epoch: PlacementEpoch(1), shards, slices }
}

/// Writes a checkpoint as ps tasks and a chief would. `parts` lists the parts to write (such as values or
/// averages). Each part comes with its elements for every variable.
async fn save(store: &Store, step: u64, job: &JobSpec, placement: &Placement, parts: &[(Part, &[Vec<f32>])]) {
    let mut files = Vec::new();
    for &shard in &placement.shards {
        let (mut tensors, mut specs) = (Vec::new(), Vec::new());
        for (id, slice) in placement.on_shard(shard) {
            let variable = &job.graph.variables[slice.variable.index()];
            for (part, numbers) in parts {
                if *part == Part::Average && !job.update().averages(variable) {
                    continue;
                }
                let first = slice.first_element(variable);
                let own = &numbers[slice.variable.index()][first..first + slice.elements(variable)];
                let mut shape = variable.shape.clone();
                shape.0.first_mut().into_iter().for_each(|rows| *rows = slice.rows as usize);
                let name = format!("{}[{}]:{part:?}", variable.name, slice.row);
                tensors.push(NewTensor { name, shape, bytes: vec![bytes_of(own)] });
                specs.push((id, *part));
            }
        }
        let file = CheckpointName::shard_file(shard);
        let (written, bytes) =
            write_file(store, &name(step).file(&file), tensors.clone(), HashMap::new()).await.unwrap();
        let tensors = tensors.into_iter().zip(specs).zip(written);
        let tensors = tensors.map(|((tensor, (slice, part)), written)| SavedTensorSpec {
            name: tensor.name,
            slice,
            part,
            offset: written.offset,
            bytes: written.bytes,
            crc32c: written.crc32c,
        });
        files.push(FileSpec { name: file, shard, version: Version(step), bytes, tensors: tensors.collect() });
    }
    let (job, placement) = (job.clone(), placement.clone());
    let (step, workers) = (GlobalStep(step), Vec::new());
    let learning_rate = RateSpec::default();
    let manifest = ManifestSpec {
        format: FORMAT,
        step,
        saved_ms: 1,
        job,
        placement,
        files,
        workers,
        learning_rate,
        inputs: Default::default(),
    };
    manifest.validate().unwrap();
    store.put(&name(step.0).manifest(), manifest.encode().unwrap()).await.unwrap();
}

/// Returns the name, shape and bytes of every tensor in a checkpoint file.
async fn contents(store: &Store, file: &str) -> Vec<(String, Shape, Bytes)> {
    let mut all = Vec::new();
    for tensor in read_header(store, file).await.unwrap() {
        let bytes = store.read(file, tensor.offset..tensor.offset + tensor.bytes).await.unwrap();
        all.push((tensor.name, tensor.shape, bytes));
    }
    all
}

async fn export_all(store: &Store, name: CheckpointName, averages: bool) -> anyhow::Result<u64> {
    let manifest = &Catalog::new(store.clone()).manifest(name).await?;
    let variables = chosen(manifest, &[])?;
    export(store, &Export { name, manifest, averages, variables }, store, FILE).await
}

async fn import_into(store: &Store, job: &JobSpec, allow_extra: bool) -> anyhow::Result<()> {
    let what = Import { name: name(0), job: job.clone(), saved_ms: 2, allow_extra };
    import(store, FILE, what, store).await
}

/// Returns the bytes of one part of a variable, such as its value or its average.
async fn part(store: &Store, manifest: &ManifestSpec, id: usize, part: Part) -> Vec<u8> {
    let variable = &manifest.job.graph.variables[id];
    let pieces = manifest.pieces(VariableId(id as u32), part, 0..variable.rows() as u64);
    let mut all = vec![0; pieces.iter().map(|piece| piece.from.end - piece.from.start).sum::<u64>() as usize];
    for piece in &pieces {
        let to = piece.to as usize..(piece.to + piece.from.end - piece.from.start) as usize;
        let checkpoint = CheckpointName { step: manifest.step, ..name(0) };
        read_piece(store, checkpoint, piece, &mut all[to]).await.unwrap();
    }
    all
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn store(directory: &Path) -> Store {
    Store::open(directory.to_str().unwrap()).unwrap()
}

fn adagrad() -> OptimizerSpec {
    OptimizerSpec::adagrad(0.1)
}

fn shapes() -> impl Strategy<Value = Vec<(Shape, bool)>> {
    let shape = prop_oneof![
        1 => Just(Shape::scalar()),
        3 => (1usize..7).prop_map(|rows| [rows].into()),
        4 => (1usize..9, 1usize..5).prop_map(|(rows, cols)| [rows, cols].into()),
    ];
    prop::collection::vec((shape, prop::bool::weighted(0.8)), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks that, for a drawn placement, the exported file contains the exact bits of the values or of the
    /// averages. Importing the file must give a valid checkpoint: its values and averages equal the file's
    /// tensors, and its slots have their initial values. A variable that is not trained has neither slots
    /// nor an average.
    #[test]
    fn a_model_leaves_and_comes_back_as_it_is(
        variables in shapes(), shards in 1u32..4, slices in 1u64..5, seed: u32, averages: bool, frozen: bool,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let groups = if frozen { vec![GroupSpec::new("layer0/*").frozen()] } else { vec![] };
        let job = JobSpec { groups, ..job(&variables, Some(0.5), adagrad()) };
        let trained = |id: usize| variables[id].1 && !(frozen && id == 0);
        // The values are arbitrary bit patterns, including NaN.
        let mut bits = seed;
        let mut numbers = || -> Vec<Vec<f32>> {
            let mut next = || { bits = bits.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15); f32::from_bits(bits) };
            variables.iter().map(|(shape, _)| (0..shape.elements()).map(|_| next()).collect()).collect()
        };
        let (values, means) = (numbers(), numbers());
        block_on(async {
            let placement = placement(&job, shards, slices);
            save(&store, 3, &job, &placement, &[(Part::Value, &values), (Part::Average, &means)]).await;
            assert_eq!(verify(&store, name(3)).await.faults, []);
            export_all(&store, name(3), averages).await.unwrap();
            let exported = contents(&store, FILE).await;
            assert_eq!(exported.len(), variables.len());
            for (id, (got_name, got_shape, got)) in exported.iter().enumerate() {
                let from = if averages && trained(id) { &means } else { &values };
                assert_eq!((got_name.as_str(), got_shape), (&*format!("layer{id}/kernel"), &variables[id].0));
                assert_eq!(got, &bytes_of(&from[id]));
            }
            import_into(&store, &job, false).await.unwrap();
            assert_eq!(verify(&store, name(0)).await.faults, []);
            let manifest = Catalog::new(store.clone()).manifest(name(0)).await.unwrap();
            for (id, (_, _, value)) in exported.iter().enumerate() {
                let trained = trained(id);
                assert_eq!(&part(&store, &manifest, id, Part::Value).await, value);
                let mean = part(&store, &manifest, id, Part::Average).await;
                assert_eq!(mean, if trained { value.to_vec() } else { vec![] });
                let slot = part(&store, &manifest, id, Part::Slot(0)).await;
                let initial = vec![0.1; if trained { value.len() / 4 } else { 0 }];
                assert_eq!(slot, bytes_of(&initial));
                assert!(part(&store, &manifest, id, Part::Slot(1)).await.is_empty());
            }
            export_all(&store, name(0), false).await.unwrap();
            assert_eq!(contents(&store, FILE).await, exported);
        });
    }
}

#[test]
fn tensors_of_several_blocks_leave_and_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let rows = BLOCK_BYTES / 4 + 700;
    let job = job(&[([rows, 3].into(), true), ([5].into(), true)], None, OptimizerSpec::adam(0.1));
    let values = vec![(0..rows * 3).map(|at| at as f32).collect(), vec![0.5; 5]];
    block_on(async {
        save(&store, 3, &job, &placement(&job, 2, 2), &[(Part::Value, &values)]).await;
        export_all(&store, name(3), false).await.unwrap();
        import_into(&store, &job, false).await.unwrap();
        assert_eq!(verify(&store, name(0)).await.faults, []);
        let manifest = Catalog::new(store.clone()).manifest(name(0)).await.unwrap();
        for (id, values) in values.iter().enumerate() {
            assert_eq!(part(&store, &manifest, id, Part::Value).await, bytes_of(values));
            assert_eq!(part(&store, &manifest, id, Part::Slot(1)).await, vec![0; values.len() * 4]);
        }
    });
}

#[test]
fn every_change_of_a_file_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let job = job(&[([5, 3].into(), true), (Shape::scalar(), false)], None, adagrad());
    let values = vec![(0..15).map(|at| at as f32).collect(), vec![7.0]];
    block_on(async {
        save(&store, 3, &job, &placement(&job, 2, 2), &[(Part::Value, &values)]).await;
        save(&store, 2, &job, &placement(&job, 1, 1), &[(Part::Value, &values)]).await;
        let sound = Catalog::new(store.clone()).manifest(name(3)).await.unwrap();
        for file in ["ps-0-shard-0.safetensors", "ps-1-shard-0.safetensors", "manifest.json"] {
            let path = directory.path().join(name(3).file(file));
            let good = std::fs::read(&path).unwrap();
            let header = contents(&store, &name(3).file("ps-0-shard-0.safetensors")).await;
            for at in (0..good.len()).step_by(1 + good.len() / 150) {
                let mut changed = good.clone();
                changed[at] ^= 1 << (at % 7);
                std::fs::write(&path, &changed).unwrap();
                if verify(&store, name(3)).await.faults.is_empty() {
                    // A changed byte may leave the meaning of the JSON unchanged, for example in an escape
                    // sequence or in white space.
                    assert_eq!(
                        Catalog::new(store.clone()).manifest(name(3)).await.unwrap(),
                        sound,
                        "{file}, byte {at}"
                    );
                    assert_eq!(contents(&store, &name(3).file("ps-0-shard-0.safetensors")).await, header);
                }
                std::fs::write(&path, &good[..at]).unwrap();
                assert!(!verify(&store, name(3)).await.faults.is_empty(), "{file}, cut at byte {at}");
            }
            std::fs::remove_file(&path).unwrap();
            assert!(!verify(&store, name(3)).await.faults.is_empty(), "{file} is missing");
            assert_eq!(latest_whole(&store).await.unwrap(), Some(name(2)));
            std::fs::write(&path, &good).unwrap();
        }
        assert_eq!(latest_whole(&store).await.unwrap(), Some(name(3)));
        // The fault names the file and the tensor.
        let path = directory.path().join(name(3).file("ps-0-shard-0.safetensors"));
        let mut changed = std::fs::read(&path).unwrap();
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &changed).unwrap();
        let faults = verify(&store, name(3)).await.faults;
        assert_eq!(faults.len(), 1);
        let shown = faults[0].to_string();
        let expected =
            "ps-0-shard-0.safetensors: tensor 'layer1/kernel[0]:Value': the block at byte 0 has checksum ";
        assert!(shown.starts_with(expected), "{shown}");
        assert!(export_all(&store, name(3), false).await.unwrap_err().to_string().contains("checksum"));
        assert!(!directory.path().join(FILE).exists());
    });
}

#[test]
fn a_catalog_says_what_is_whole_broken_and_unfinished() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let job = job(&[([2].into(), true)], None, adagrad());
    block_on(async {
        assert_eq!(listed(&Catalog::new(store.clone())).await.unwrap(), []);
        assert!(
            select(&store, None).await.unwrap_err().to_string().starts_with("there is no checkpoint in ")
        );
        for step in [3, 20] {
            save(&store, step, &job, &placement(&job, 1, 1), &[(Part::Value, &[vec![1.0, 2.0]])]).await;
        }
        std::fs::remove_file(directory.path().join(name(3).file("ps-0-shard-0.safetensors"))).unwrap();
        store.put(&name(40).file("ps-0-shard-0.safetensors"), "1234").await.unwrap();
        store.copy(&name(20).manifest(), &name(21).manifest()).await.unwrap();
        store.put("eval/step-3.json", "{}").await.unwrap();
        let entries = listed(&Catalog::new(store.clone())).await.unwrap();
        let told: Vec<_> = entries.iter().map(|entry| (entry.name.step.0, &entry.state)).collect();
        let gone = format!("ps-0-shard-0.safetensors is missing in {}", directory.path().display());
        let missing = State::Broken(gone);
        let State::Broken(reason) = told[2].1 else { panic!("{told:?}") };
        assert!(reason.contains("it has step 20, but lies in the folder of another step"), "{reason}");
        assert_eq!(
            (told[0], told[1], told[3]),
            ((3, &missing), (20, &State::Whole), (40, &State::Unfinished))
        );
        assert_eq!((entries[3].bytes, entries[3].files, entries[3].saved_ms), (4, 1, None));
        assert_eq!(select(&store, None).await.unwrap(), name(21));
        assert_eq!(select(&store, Some("20")).await.unwrap(), name(20));
        assert_eq!(select(&store, Some(&name(40).to_string())).await.unwrap(), name(40));
        for (which, words) in [
            ("40", "no finished checkpoint of step 40"),
            ("7", "it has steps 3, 20, 21, 40"),
            ("../x", "'../x' is not a step or a checkpoint"),
            ("step-3-0000000000000001", "there is no checkpoint step-3-0000000000000001 in "),
        ] {
            let error = select(&store, Some(which)).await.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let manifest = Catalog::new(store.clone()).manifest(name(20)).await.unwrap();
        assert_eq!(chosen(&manifest, &["layer?/*".into()]).unwrap(), [VariableId(0)]);
        let error = chosen(&manifest, &["conv*".into()]).unwrap_err().to_string();
        assert_eq!(error, "no variable matches 'conv*'; the model has layer0/kernel");
        let error = export_all(&store, name(20), true).await.unwrap_err().to_string();
        assert!(
            error
                .ends_with("has no moving averages because its job has no --ema-decay: leave out --averages"),
            "{error}"
        );
    });
}

/// Returns the contents of a safetensors file: the length of the header, the header, and `bytes` zeros.
fn file(header: &str, bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}

#[test]
fn a_file_that_does_not_fit_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let job = job(&[([2].into(), true)], None, adagrad());
    let tensor = |name: &str, dtype: &str, shape: &str, from: usize, to: usize| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let own = tensor("layer0/kernel", "F32", "[2]", 0, 8);
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.resize(100, b' ');
    let cases = [
        (vec![], "it has 0 bytes"),
        (b"not a model, but some words".to_vec(), "its header would have"),
        (huge, "its header would have 18446744073709551615 bytes"),
        (file("[1, 2]", 0), "is not a safetensors file: "),
        (file(&"[".repeat(100_000), 0), "is not a safetensors file: "),
        (file("{}", 0), "lacks the variable 'layer0/kernel' [2]"),
        (file("{}", 8), "lacks the variable 'layer0/kernel' [2]"),
        (file(&format!("{{{own}}}"), 7), "its tensors have 8 bytes, but the file has 7 after the header"),
        (
            file(&format!("{{{}}}", tensor("layer0/kernel", "F32", "[2]", 0, usize::MAX)), 8),
            "is not a safetensors file: ",
        ),
        (
            file(&format!("{{{}}}", tensor("x", "U8", "[18446744073709551615]", 0, usize::MAX)), 8),
            "is not a safetensors file: ",
        ),
        (
            file(&format!("{{{}}}", tensor("layer0/kernel", "F16", "[4]", 0, 8)), 8),
            "with type F16, expected F32",
        ),
        (
            file(&format!("{{{}}}", tensor("layer0/kernel", "F32", "[1,2]", 0, 8)), 8),
            "has 'layer0/kernel' with shape [1, 2], expected [2]",
        ),
        (
            file(&format!("{{{}}}", tensor("../../x", "F32", "[2]", 0, 8)), 8),
            "lacks the variable 'layer0/kernel' [2]; tensors that the job does not have: '../../x'",
        ),
        (
            file(&format!("{{{own},{}}}", tensor(r"..\u001b[31m", "F32", "[1]", 8, 12)), 12),
            "has 1 tensor(s) that the job does not have: '..\u{fffd}[31m'; ignore them with --allow-extra",
        ),
    ];
    block_on(async {
        for (bytes, words) in cases {
            std::fs::write(directory.path().join(FILE), bytes).unwrap();
            let error = format!("{:#}", import_into(&store, &job, false).await.unwrap_err());
            assert!(error.contains(words) && error.starts_with(FILE), "{error}\nshould say {words}");
            assert!(error.len() < 1000 && !error.chars().any(char::is_control), "{error}");
            assert_eq!(listed(&Catalog::new(store.clone())).await.unwrap(), []);
        }
        import_into(&store, &job, true).await.unwrap();
        assert_eq!(verify(&store, name(0)).await.faults, []);
        let late = Import { name: name(101), job: job.clone(), saved_ms: 0, allow_extra: true };
        let error = import(&store, FILE, late, &store).await.unwrap_err().to_string();
        assert_eq!(error, "step 101 is beyond the job's last step, 100");
    });
}

#[test]
fn a_manifest_of_another_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let job = job(&[([2].into(), true)], None, adagrad());
    let own = r#"{"layer0/kernel":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    std::fs::write(directory.path().join(FILE), file(own, 8)).unwrap();
    block_on(async {
        import_into(&store, &job, true).await.unwrap();
        let manifest = store.get(&name(0).manifest(), 1 << 20).await.unwrap();
        let text = std::str::from_utf8(&manifest).unwrap();
        let (_, inner) = text.split_once(r#""manifest":"#).unwrap();
        let inner = inner[..inner.len() - 1].replacen(r#""format":1"#, r#""format":2"#, 1);
        let sum = crc32c::crc32c(inner.as_bytes());
        let other = format!(r#"{{"crc32c":{sum},"manifest":{inner}}}"#);
        store.put(&name(0).manifest(), other).await.unwrap();
        let error = format!("{:#}", Catalog::new(store.clone()).manifest(name(0)).await.unwrap_err());
        let words = "the manifest has format 2, expected format 1; use the version of pushpull that wrote it";
        assert_eq!(error, format!("{}/manifest.json: {words}", name(0)));
        assert_eq!(
            listed(&Catalog::new(store.clone())).await.unwrap()[0].state,
            State::Broken(format!("manifest.json: {words}"))
        );
        assert_eq!(verify(&store, name(0)).await.faults[0].what, words);
    });
}
