//! Tests that a stream's batches are bitwise equal to those of the same data set in memory, from the start
//! and after the stream is restored.

use proptest::prelude::*;
use pushpull_messages::input::{Column, StageSpec};
use pushpull_messages::tensor::{Shape, TensorSpec};

use super::*;
use crate::dataset::from_fn;
use crate::{DataShare, InMemory, Mapped, Pipeline, Position, Prefetch, Sampler, Storage};

/// Returns a data set of small images. Each example also has a label and two numbers.
fn images(examples: usize) -> InMemory {
    let column = |name: &str, example| ColumnSpec { name: name.to_owned(), example };
    let pixels = (0..examples * 12).map(|at| (at * 7 % 251) as u8).collect();
    InMemory::new(
        examples,
        vec![
            (column("image", TensorSpec::f32(Shape::from([2, 2, 3]))), Storage::Pixels(pixels)),
            (
                column("label", TensorSpec::i32([])),
                Storage::I32((0..examples as i32).map(|at| at % 4).collect()),
            ),
            (
                column("x", TensorSpec::f32([2])),
                Storage::F32((0..2 * examples).map(|at| at as f32).collect()),
            ),
        ],
    )
    .unwrap()
}

fn stages() -> Vec<MapSpec> {
    vec![
        MapSpec::new("image", StageSpec::RandomCrop { pad: 1, size: [2, 2] }),
        MapSpec::new("image", StageSpec::RandomFlip),
        MapSpec::new("label", StageSpec::OneHot { classes: 4 }),
    ]
}

/// A data set that hides its number of examples. Its readers skip examples by reading them.
struct Unknown(InMemory);

struct UnknownReader(Box<dyn Reader>);

impl Reader for UnknownReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        self.0.read(examples, rows)
    }
}

impl Dataset for Unknown {
    fn columns(&self) -> &[ColumnSpec] {
        self.0.columns()
    }

    fn examples(&self) -> Option<u64> {
        None
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        Ok(Box::new(UnknownReader(self.0.reader()?)))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        self.0.rows()
    }
}

fn shuffling() -> impl Strategy<Value = ShuffleSpec> {
    prop_oneof![(1u32..30).prop_map(ShuffleSpec::Buffer), Just(ShuffleSpec::None)]
}

fn repetition() -> impl Strategy<Value = RepeatSpec> {
    prop_oneof![Just(RepeatSpec::Endless), (1u64..4).prop_map(RepeatSpec::Epochs)]
}

/// Fills `count` batches, or fewer if the input ends earlier. Returns the columns of each batch, and whether
/// the input ended.
fn take(
    mut fill: impl FnMut(&mut Batch) -> Result<(), InputError>,
    count: usize,
) -> (Vec<Vec<Column>>, bool) {
    let mut batches = Vec::new();
    for _ in 0..count {
        let mut batch = Batch::default();
        match fill(&mut batch) {
            Ok(()) => batches.push(batch.columns),
            Err(InputError::Ended { .. }) => return (batches, true),
            Err(error) => panic!("{error}"),
        }
    }
    (batches, false)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Checks that a stream gives the same bits as the data set in memory (A), even after the stream is
    /// restored (B). Tests data sets that know their number of examples, and others.
    #[test]
    fn a_stream_has_the_bits_of_memory(
        more in 0usize..60, workers in 1u32..4, whole: bool, batch in 1usize..14, seed: u64, shuffle in shuffling(),
        repeat in repetition(), known: bool, before in 0usize..12, after in 0usize..12,
    ) {
        let worker = workers - 1;
        let set = images(workers as usize + more);
        let share = match whole {
            true => DataShare::whole(worker, set.len()).unwrap(),
            false => DataShare::new(worker, workers, set.len()).unwrap(),
        };
        let mut memory = Pipeline::held(
            Mapped::training(set.clone(), &stages(), seed).unwrap(),
            Sampler::with(share, batch, seed, shuffle, repeat).unwrap(),
        );
        let expected = take(|batch| memory.fill(batch), before + after);

        let (begin, step) = if whole { (0, 1) } else { (worker.into(), workers.into()) };
        let config = StreamConfig { map: stages(), batch, seed, shuffle, repeat, worker, workers, begin, step };
        let set: Arc<dyn Dataset> = if known { Arc::new(set) } else { Arc::new(Unknown(set)) };
        let mut stream = Stream::new(Arc::clone(&set), config.clone()).unwrap();
        prop_assert_eq!(take(|batch| stream.fill(batch), before + after), expected.clone());

        prop_assert_eq!(stream.examples().is_some(), known || expected.1 || stream.epoch > 0);
        let done = expected.0.len().min(before);
        let mut restored = Stream::new(set, config).unwrap();
        restored.restore((done * batch) as u64).unwrap();
        let rest = take(|batch| restored.fill(batch), expected.0.len() - done + usize::from(expected.1));
        prop_assert_eq!(rest, (expected.0[done..].to_vec(), expected.1));
    }

    #[test]
    fn memory_restores_to_the_same_place(used in 0u64..500, examples in 1usize..40) {
        let set = images(examples);
        let share = DataShare::new(0, 1, examples).unwrap();
        let sampler = || Sampler::with(share, 3, 1, ShuffleSpec::Buffer(5), RepeatSpec::Endless).unwrap();
        let held = || Pipeline::held(Mapped::training(set.clone(), &[], 1).unwrap(), sampler());
        let (mut pipeline, mut other) = (held(), sampler());
        pipeline.restore(used).unwrap();
        other.restore(Position::after(used, share)).unwrap();
        let mut expected = Pipeline::held(Mapped::training(set.clone(), &[], 1).unwrap(), other);
        let next = |pipeline: &mut Pipeline| take(|batch| pipeline.fill(batch), 3);
        prop_assert_eq!(next(&mut pipeline), next(&mut expected));
    }
}

fn endless(config: StreamConfig) -> Stream {
    let column = ColumnSpec { name: "id".to_owned(), example: TensorSpec::i32([]) };
    let set = from_fn(vec![column], None, |index| vec![Column::I32(vec![index as i32])]);
    Stream::new(Arc::new(set), config).unwrap()
}

fn config(shuffle: ShuffleSpec) -> StreamConfig {
    let (map, repeat) = (Vec::new(), RepeatSpec::Endless);
    StreamConfig { map, batch: 4, seed: 7, shuffle, repeat, worker: 0, workers: 1, begin: 0, step: 1 }
}

#[test]
fn a_set_without_an_end_can_be_restored() {
    let mut stream = endless(config(ShuffleSpec::Buffer(10)));
    let all = take(|batch| stream.fill(batch), 300).0;
    let mut restored = endless(config(ShuffleSpec::Buffer(10)));
    restored.restore(4 * 250).unwrap();
    assert_eq!(take(|batch| restored.fill(batch), 50).0, all[250..]);
    assert_eq!(stream.examples(), None);
}

#[test]
fn a_worker_without_an_example_is_an_error() {
    let config = StreamConfig { worker: 2, workers: 3, begin: 2, step: 3, ..config(ShuffleSpec::None) };
    let set = || Arc::new(images(2));
    assert!(matches!(Stream::new(set(), config.clone()), Err(InputError::Share { worker: 2, .. })));
    let mut stream = Stream::new(Arc::new(Unknown(images(2))), config.clone()).unwrap();
    assert!(matches!(
        stream.fill(&mut Batch::default()),
        Err(InputError::Share { worker: 2, workers: 3, .. })
    ));
    let mut stream = Stream::new(Arc::new(Unknown(images(2))), config).unwrap();
    assert!(matches!(stream.restore(5), Err(InputError::Share { .. })));
}

#[test]
fn a_buffer_may_be_larger_than_the_set() {
    let large = config(ShuffleSpec::Buffer(50_000_000));
    let mut stream = Stream::new(Arc::new(images(9)), large.clone()).unwrap();
    assert!(stream.fill(&mut Batch::default()).is_ok());
    assert!(Stream::new(Arc::new(Unknown(images(9))), large).is_ok());
    let error = Stream::new(Arc::new(images(9)), config(ShuffleSpec::Buffer(u32::MAX))).err().unwrap();
    assert!(matches!(error, InputError::Buffer { .. }), "{error}");
}

#[test]
fn a_class_out_of_range_names_the_example() {
    let map = vec![MapSpec::new("label", StageSpec::OneHot { classes: 3 })];
    let config = StreamConfig { map, begin: 1, step: 2, ..config(ShuffleSpec::None) };
    let mut stream = Stream::new(Arc::new(images(20)), config).unwrap();
    let error = stream.fill(&mut Batch::default()).unwrap_err();
    assert!(matches!(error, InputError::Class { example: 3, id: 3, classes: 3, .. }), "{error}");
}

#[test]
fn a_set_that_shrinks_between_epochs_is_an_error() {
    struct Shrinking(std::sync::atomic::AtomicUsize);
    impl Dataset for Shrinking {
        fn columns(&self) -> &[ColumnSpec] {
            static COLUMNS: std::sync::OnceLock<Vec<ColumnSpec>> = std::sync::OnceLock::new();
            COLUMNS.get_or_init(|| images(1).columns().to_vec())
        }
        fn examples(&self) -> Option<u64> {
            None
        }
        fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
            images(self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed)).reader()
        }
        fn rows(&self) -> Result<Rows, InputError> {
            images(1).rows()
        }
    }
    let mut stream = Stream::new(Arc::new(Shrinking(9.into())), config(ShuffleSpec::None)).unwrap();
    let error = (0..9).find_map(|_| stream.fill(&mut Batch::default()).err()).unwrap();
    assert!(matches!(error, InputError::Changed { examples: 8 }), "{error}");
}

#[test]
fn an_error_of_the_data_reaches_the_receiver_twice() {
    let column = ColumnSpec { name: "id".to_owned(), example: TensorSpec::i32([]) };
    let set = from_fn(vec![column], None, |index| vec![Column::I32(vec![0; usize::from(index < 9)])]);
    let (index, workers) = (0, 1);
    let mut input = pushpull_messages::input::InputSpec::new(
        pushpull_messages::input::DatasetSpec::Custom("mine".into()),
        pushpull_messages::input::DatasetSpec::Custom("mine".into()),
    );
    input.shuffle = ShuffleSpec::None;
    let mut custom = crate::Datasets::default();
    custom.insert("mine", Arc::new(set));
    let worker = crate::PipelineWorker { index, workers };
    let pipeline = Pipeline::open(&input, &custom, 4, 0, worker).unwrap();
    assert!(pipeline.is_streamed());
    let mut prefetch = Prefetch::start(pipeline, 1, 1).unwrap();
    let errors: Vec<String> = (0..20)
        .filter_map(|_| prefetch.next_blocking().err())
        .map(|error| error.to_string())
        .take(2)
        .collect();
    assert_eq!(
        errors,
        ["an example has 0 elements of i32, expected 'id' i32[]: correct the function or the data set that made the example";
            2]
    );
}
