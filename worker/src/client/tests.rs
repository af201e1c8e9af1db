//! Tests of gradients and values that are sent in an encoding, and the layouts with which the client is
//! tested.

use std::sync::Arc;

use futures_util::FutureExt;
use proptest::prelude::*;
use pushpull_kernels::cpu::{Encoding, Threads};
use pushpull_messages::compression::{EncodingSpec, SentAs};
use pushpull_messages::id::{PlacementEpoch, ShardId, VariableId, Version};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::layout::{Layout, ShardPart, SlicePart};
use super::parameters::Front;
use super::residuals::Residuals;
use super::{Gradients, Values};

/// Returns variables and their placement on `shards` shards. Each variable is given by its rows, its columns,
/// and a number that says into how many slices it is split, and where they are.
pub(super) fn placed(variables: &[(usize, usize, u8)], shards: u32) -> (Placement, Vec<VariableSpec>) {
    let mut placement = Placement {
        epoch: PlacementEpoch(1),
        shards: (0..shards).map(|ps| ShardId::new(ps, 0)).collect(),
        slices: Vec::new(),
    };
    let mut specs = Vec::new();
    for (id, &(rows, cols, how)) in variables.iter().enumerate() {
        let split = 1 + how as usize % rows;
        let mut row = 0;
        for part in 0..split {
            let rows_here = if part + 1 == split { rows - row } else { 1 };
            let (variable, ps) = (VariableId(id as u32), (how as u32 + part as u32) % shards);
            let slice = SliceSpec { variable, row: row as u64, rows: rows_here as u64 };
            placement.slices.push(PlacedSlice { slice, shard: ShardId::new(ps, 0) });
            row += rows_here;
        }
        specs.push(VariableSpec {
            name: format!("v{id}"),
            shape: [rows, cols].into(),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        });
    }
    placement.validate(&specs).unwrap();
    (placement, specs)
}

fn any_encoding() -> impl Strategy<Value = Option<EncodingSpec>> {
    prop::sample::select(vec![
        None,
        Some(EncodingSpec::Fp16),
        Some(EncodingSpec::Bf16),
        Some(EncodingSpec::Int8),
        Some(EncodingSpec::TopK { fraction: 0.1 }),
    ])
}

/// The rows, the columns and the split of a variable, and its encoding.
type Drawn = ((usize, usize, u8), Option<EncodingSpec>);

/// Any variables and their placement, with an encoding of the gradients of each, and the number of shards.
fn any_variables() -> impl Strategy<Value = (Vec<Drawn>, u32)> {
    (prop::collection::vec(((1usize..6, 1usize..200, any::<u8>()), any_encoding()), 1..5), 1u32..4)
}

/// Returns the layout of these variables. If an encoding of gradients is dense, the values have it, too.
fn layout(variables: &[Drawn], shards: u32) -> Arc<Layout> {
    let (shapes, encodings): (Vec<_>, Vec<_>) = variables.iter().copied().unzip();
    let (placement, specs) = placed(&shapes, shards);
    let mut layout = Layout::new(&placement, &specs);
    let sent = |&gradients: &Option<EncodingSpec>| SentAs {
        gradients,
        values: gradients.filter(|encoding| encoding.is_dense()),
    };
    layout.compress(&encodings.iter().map(sent).collect::<Vec<_>>());
    Arc::new(layout)
}

/// Fills gradients with numbers that follow from `seed`, and returns these.
fn fill(gradients: &mut Gradients, layout: &Layout, seed: u64) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for (id, variable) in layout.variables.iter().enumerate() {
        let number = |at: usize| ((at as u64 * 37 + seed * 101 + id as u64) % 211) as f32 / 100.0 - 1.0;
        let numbers: Vec<f32> = (0..variable.elements).map(number).collect();
        gradients.variable_mut(VariableId(id as u32)).copy_from_slice(&numbers);
        all.push(numbers);
    }
    all
}

/// Calls `part` with each part of a variable, with the encoding of its gradient, and with the bytes that a
/// push has for it. The first argument is the index of the variable.
fn for_each_part(
    layout: &Layout,
    payloads: &[Payload],
    mut part: impl FnMut(usize, &ShardPart, Option<Encoding>, &[u8]),
) {
    for (index, variable) in layout.variables.iter().enumerate() {
        for own in &variable.parts {
            let slices = &layout.shards[own.shard].parts;
            // The last slice is sent first.
            let segment = &payloads[own.shard].segments()[slices.len() - 1 - own.position];
            part(index, own, slices[own.position].gradient.encoding, segment.as_bytes());
        }
    }
}

/// Returns what the payloads of a push are decoded to, for each variable.
fn decoded(layout: &Layout, payloads: &[Payload]) -> Vec<Vec<f32>> {
    let mut all: Vec<_> = layout.variables.iter().map(|variable| vec![f32::NAN; variable.elements]).collect();
    for_each_part(layout, payloads, |variable, part, encoding, bytes| {
        let to = &mut all[variable][part.first_element..][..part.elements];
        match encoding {
            Some(encoding) => encoding.decode(to, bytes, Threads::One).unwrap(),
            None => {
                let numbers = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
                to.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
            }
        }
    });
    all
}

#[test]
fn a_push_goes_to_the_shards_that_are_behind() {
    let below = |versions: &[u64]| {
        let versions: Vec<Version> = versions.iter().copied().map(Version).collect();
        Front::of(&versions).below.map(|version| version.0)
    };
    assert_eq!([below(&[]), below(&[3]), below(&[3, 3])], [None; 3], "all shards get it");
    assert_eq!([below(&[5, 3]), below(&[4, 5, 5])], [Some(5); 2]);
}

/// A large gradient that is completed last takes longer to send than a wake-up takes.
#[test]
fn a_large_last_gradient_leaves_at_once() {
    for (elements, leaves) in [((4 << 20) / 4 - 1, false), ((4 << 20) / 4, true)] {
        let layout = layout(&[((1, elements, 0), None)], 1);
        let mut gradients = Gradients::take(&layout, &BufferPool::default());
        let payloads = gradients.promise();
        gradients.complete(VariableId(0));
        assert_eq!(payloads[0].segments()[0].is_ready(), leaves, "{elements} elements");
    }
}

proptest! {
    /// Gradients that share a buffer do not overlap, and the buffer has at most 1 MiB.
    #[test]
    fn buffers_hold_gradients_one_after_the_other(
        sizes in prop::collection::vec(0usize..20_000, 1..80),
        shards in 1u32..4,
        splits in prop::collection::vec(any::<u8>(), 80),
    ) {
        let variables: Vec<_> = sizes.iter().zip(splits).map(|(&size, how)| ((2, size + 1, how), None)).collect();
        let layout = layout(&variables, shards);
        let mut count = 0;
        for (position, buffer) in layout.buffers.iter().enumerate() {
            prop_assert!(buffer.variables.len() == 1 || buffer.bytes <= 1 << 20);
            let mut end = 0usize;
            for variable in &buffer.variables {
                let (own, place) = layout.place_of(*variable);
                prop_assert!(own == position && place.start * 4 == end.next_multiple_of(64));
                end = place.end * 4;
            }
            prop_assert_eq!(end, buffer.bytes);
            count += buffer.variables.len();
        }
        prop_assert_eq!(count, variables.len(), "each variable has one place");
    }

    /// Completes the gradients in any order. Each has a buffer of its own.
    #[test]
    fn the_last_promise_is_settled_with_the_gradients(
        (order, fails) in (Just((0..4u32).collect::<Vec<_>>()).prop_shuffle(), any::<bool>()),
    ) {
        let layout = layout(&[((1, 20_000, 0), None); 4], 1);
        let mut gradients = Gradients::take(&layout, &BufferPool::default());
        let payloads = gradients.promise();
        let count = || payloads[0].segments().iter().filter(|segment| segment.is_ready()).count();
        let completed = if fails { 3 } else { 4 };
        for (at, &variable) in order[..completed].iter().enumerate() {
            prop_assert_eq!(count(), at);
            gradients.complete(VariableId(variable));
        }
        prop_assert_eq!(count(), 3);
        drop(gradients);
        // A gradient that was not completed breaks its promise.
        prop_assert_eq!(count(), completed);
        prop_assert_eq!(payloads[0].complete_at().is_some(), completed == 4);
        let ready = payloads[0].ready().now_or_never();
        prop_assert_eq!(ready.map(|ready| ready.is_ok()), Some(completed == 4));
    }

    /// Completes gradients of which some share a buffer, in any order and some twice.
    #[test]
    fn gradients_of_a_buffer_leave_together(
        order in Just((0..6u32).collect::<Vec<_>>()).prop_shuffle(),
        twice in any::<u32>(),
    ) {
        // The variables 1, 2 and 3 are small and are sent one after the other. The next small one is apart.
        let sizes = [20_000, 3, 16, 1_000, 30_000, 7];
        let layout = layout(&sizes.map(|size| ((1, size, 0), None)), 1);
        let buffers: Vec<_> = layout.variables.iter().map(|variable| variable.place.buffer).collect();
        prop_assert!(buffers[1] == buffers[2] && buffers[2] == buffers[3] && layout.buffers.len() == 4);
        let mut gradients = Gradients::take(&layout, &BufferPool::default());
        let payloads = gradients.promise();
        let numbers = fill(&mut gradients, &layout, 5);
        let ready = |variable: usize| payloads[0].segments()[5 - variable].is_ready();
        let mut complete = Vec::new();
        for &variable in &order {
            gradients.complete(VariableId(variable));
            if twice & 1 << variable != 0 {
                gradients.complete(VariableId(variable));
            }
            complete.push(variable as usize);
            let whole = |buffer| (0..6).all(|other| buffers[other] != buffer || complete.contains(&other));
            let is_last = (0..4).all(whole);
            let last = buffers[variable as usize];
            for (other, &buffer) in buffers.iter().enumerate() {
                let leaves = whole(buffer) && !(is_last && buffer == last);
                prop_assert_eq!(ready(other), leaves, "variable {}", other);
            }
        }
        drop(gradients);
        for (variable, numbers) in numbers.iter().enumerate() {
            prop_assert_eq!(payloads[0].segments()[5 - variable].as_f32(), &numbers[..]);
        }
    }

    /// Encodes the gradients of one step, early and late, and assembles the payloads as values.
    #[test]
    fn encoded_gradients_and_values_agree_on_every_layout((variables, shards) in any_variables()) {
        let layout = layout(&variables, shards);
        let pool = BufferPool::default();
        let mut late = Gradients::take(&layout, &pool);
        let numbers = fill(&mut late, &layout, 3);
        let mut early = Gradients::take(&layout, &pool);
        let promised = early.promise();
        fill(&mut early, &layout, 3);
        (0..variables.len() as u32).rev().for_each(|variable| early.complete(VariableId(variable)));
        drop(early);
        let late = late.into_payloads();
        let bytes = |payloads: &[Payload]| -> Vec<Vec<u8>> {
            let segments = payloads.iter().flat_map(Payload::segments);
            segments.map(|segment| segment.as_bytes().to_vec()).collect()
        };
        prop_assert_eq!(bytes(&promised), bytes(&late));
        // Each part is encoded on its own.
        for_each_part(&layout, &late, |variable, part, encoding, bytes| {
            let numbers = &numbers[variable][part.first_element..][..part.elements];
            let expected = match encoding {
                None => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
                Some(encoding) => {
                    let mut expected = vec![0; encoding.bytes(numbers.len())];
                    match encoding.has_remainder() {
                        true => encoding.encode_with_remainder(&mut expected, numbers, &mut vec![0.0; numbers.len()]),
                        false => encoding.encode(&mut expected, numbers, Threads::One),
                    }
                    expected
                }
            };
            assert_eq!(bytes, expected);
        });
        let sparse = |part: &SlicePart| matches!(part.gradient.encoding, Some(Encoding::TopK { .. }));
        if !layout.shards.iter().flat_map(|shard| &shard.parts).any(sparse) {
            let reversed = |payload: Payload| Payload::new(payload.into_segments().into_iter().rev().collect());
            let expected = decoded(&layout, &late);
            let payloads: Vec<Payload> = late.into_iter().map(reversed).collect();
            let values = Values::assemble_sent(&layout, &payloads, &vec![true; payloads.len()], &pool).unwrap();
            for (id, expected) in expected.iter().enumerate() {
                prop_assert_eq!(values.variable(VariableId(id as u32)), &expected[..]);
            }
            // A pull returns exact values, so the same bytes are refused there.
            let exact = Values::assemble(&layout, &payloads, &pool);
            prop_assert_eq!(exact.is_err(), layout.has_encoded_values());
        }
    }

    /// Checks over several steps that what is sent and what is kept adds up to the gradients. The steps whose
    /// gradients are dropped, because the filter drops them, leave the residual as it is.
    #[test]
    fn nothing_that_an_encoding_drops_is_lost(
        (variables, shards) in any_variables(),
        dropped in prop::collection::vec(any::<bool>(), 1..6),
    ) {
        let layout = layout(&variables, shards);
        let (pool, residuals) = (BufferPool::default(), Arc::new(Residuals::new(variables.len())));
        let zeros = || -> Vec<Vec<f64>> { layout.variables.iter().map(|own| vec![0.0; own.elements]).collect() };
        let (mut computed, mut sent) = (zeros(), zeros());
        let add = |sums: &mut Vec<Vec<f64>>, more: &[Vec<f32>]| {
            for (sum, x) in sums.iter_mut().flatten().zip(more.iter().flatten()) {
                *sum += f64::from(*x);
            }
        };
        for (seed, dropped) in (0..).zip(dropped) {
            let mut gradients = Gradients::with_residuals(&layout, &pool, &residuals);
            let numbers = fill(&mut gradients, &layout, seed);
            if !dropped {
                add(&mut computed, &numbers);
                add(&mut sent, &decoded(&layout, &gradients.into_payloads()));
            }
        }
        for (id, variable) in layout.variables.iter().enumerate() {
            let mut residual = residuals.of(VariableId(id as u32));
            let residual = residual.numbers(variable.elements);
            let tolerance = match variables[id].1 {
                Some(EncodingSpec::Fp16) => 6.0 * 2f64.powi(-11),
                Some(EncodingSpec::Bf16) => 6.0 * 2f64.powi(-8),
                _ => 1e-5,
            };
            for i in 0..variable.elements {
                let (got, expected) = (sent[id][i] + f64::from(residual[i]), computed[id][i]);
                prop_assert!((got - expected).abs() <= tolerance, "variable {}: {} and {}", id, got, expected);
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_spoils_no_residual() {
    for encoding in [EncodingSpec::Int8, EncodingSpec::TopK { fraction: 0.1 }] {
        let layout = layout(&[((3, 100, 0), Some(encoding))], 1);
        let (pool, residuals) = (BufferPool::default(), Arc::new(Residuals::new(1)));
        for bad in [true, false] {
            let mut gradients = Gradients::with_residuals(&layout, &pool, &residuals);
            fill(&mut gradients, &layout, 1);
            if bad {
                gradients.variable_mut(VariableId(0))[..200].fill(f32::NAN);
            }
            let payloads = gradients.into_payloads();
            assert_eq!(decoded(&layout, &payloads)[0].iter().all(|x| x.is_finite()), !bad, "{encoding}");
        }
    }
}

#[test]
fn a_push_has_fewer_bytes_and_every_part_begins_a_cache_line() {
    let sent = [Some(EncodingSpec::Int8), None, Some(EncodingSpec::TopK { fraction: 0.01 })];
    let layout = layout(&sent.map(|encoding| ((4, 250, 3), encoding)), 2);
    // Each part has 250 elements: 258 bytes and padding as int8, and 3 pairs as top-k.
    assert_eq!(layout.sent_bytes(), [4 * (260 + 1000 + 24), 4 * (260 + 1000 + 1000), 12_000]);
    let parts = layout.shards.iter().flat_map(|shard| &shard.parts);
    let encoded = parts.filter(|part| part.gradient.encoding.is_some());
    assert!(encoded.map(|part| part.gradient.start).all(|start| start.is_multiple_of(64)));
}

#[test]
fn encoding_takes_no_new_memory_after_the_first_steps() {
    let sent =
        [Some(EncodingSpec::Int8), Some(EncodingSpec::TopK { fraction: 0.01 }), Some(EncodingSpec::Bf16)];
    let layout = layout(&sent.map(|encoding| ((5, 150, 2), encoding)), 2);
    let (pool, residuals) = (BufferPool::default(), Arc::new(Residuals::new(3)));
    // Encoded values, as they arrive.
    let values = layout.shards.iter().map(|shard| {
        let bytes = |part: &SlicePart| part.values.map_or(part.elements * 4, |own| own.bytes(part.elements));
        let buffers = shard.parts.iter().map(|part| Buffer::zeroed(bytes(part)));
        Payload::new(buffers.map(|buffer| Segment::whole(Arc::new(buffer))).collect())
    });
    let values: Vec<Payload> = values.collect();
    let step = || {
        let mut gradients = Gradients::with_residuals(&layout, &pool, &residuals);
        fill(&mut gradients, &layout, 1);
        let _payloads = gradients.into_payloads();
        let _values = Values::assemble_sent(&layout, &values, &[true; 2], &pool).unwrap();
        pool.bytes_kept() + pool.bytes_used()
    };
    let first = step();
    assert!((0..5).all(|_| step() == first) && first > 0);
    assert_eq!(pool.bytes_used(), 0);
}
