//! Compares the encodings with naive versions, and checks the properties of the module.

use proptest::prelude::*;

use super::*;
use crate::cpu::tests::{bits, floats};

const HALVES: [Encoding; 2] = [Encoding::Fp16, Encoding::Bf16];

fn encode(encoding: Encoding, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xaa; encoding.bytes(x.len())];
    encoding.encode(&mut bytes, x, Threads::One);
    bytes
}

fn decode(encoding: Encoding, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut x = vec![f32::NAN; elements];
    encoding.decode(&mut x, bytes, Threads::One).unwrap();
    x
}

fn there_and_back(encoding: Encoding, x: &[f32]) -> Vec<f32> {
    decode(encoding, &encode(encoding, x), x.len())
}

/// Returns the value of a finite code of binary16, by the definition of the format.
fn half_value(code: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 10 & 31), f64::from(code & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    if code >> 15 == 1 { -magnitude } else { magnitude }
}

/// Returns the value of a finite code of bfloat16, by the definition of the format.
fn brain_value(code: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 7 & 255), f64::from(code & 127));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-133),
        _ => (128.0 + mantissa) * 2f64.powi(exponent - 134),
    };
    if code >> 15 == 1 { -magnitude } else { magnitude }
}

/// Returns the nearest of the finite numbers, which are in the order of their codes; of two, the one with the
/// even code. Saturates.
fn nearest(x: f32, numbers: &[f64]) -> f64 {
    let x = f64::from(x);
    let above = numbers.partition_point(|&number| number < x.abs());
    let found = match above {
        0 => 0,
        above if above == numbers.len() => above - 1,
        above => {
            let (down, up) = (x.abs() - numbers[above - 1], numbers[above] - x.abs());
            if down < up || (down == up && above % 2 == 1) { above - 1 } else { above }
        }
    };
    numbers[found].copysign(x)
}

/// Any number: the bits are random, or the magnitude is.
fn any_number() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        (-45f32..38.5, any::<bool>())
            .prop_map(|(power, sign)| 10f32.powf(power) * if sign { 1.0 } else { -1.0 }),
        prop::sample::select(
            &[0.0, -0.0, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN, 65519.9, 65520.0][..]
        ),
    ]
}

/// Numbers of similar magnitudes, as a gradient has them, with some zeros.
fn usual(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![4 => -1f32..1.0, 1 => Just(0.0)];
    (prop::collection::vec(number, len), -20f32..20.0)
        .prop_map(|(x, power)| x.iter().map(|x| x * 10f32.powf(power)).collect())
}

#[test]
fn every_code_of_16_bits_has_its_value() {
    let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (encoding, value, infinity) in
        [(Encoding::Fp16, half_value as fn(u16) -> f64, 0x7c00u16), (Encoding::Bf16, brain_value, 0x7f80)]
    {
        let numbers = decode(encoding, &codes, 1 << 16);
        for (code, &number) in (0..=u16::MAX).zip(&numbers) {
            match code & 0x7fff {
                finite if finite < infinity => assert_eq!(f64::from(number), value(code), "{code:x}"),
                same if same == infinity => assert!(number.is_infinite(), "{code:x}"),
                _ => assert!(number.is_nan(), "{code:x}"),
            }
            assert!(number.is_nan() || number.is_sign_negative() == (code >> 15 == 1), "{code:x}");
        }
        // What can be stored is stored unchanged.
        let again = encode(encoding, &numbers);
        for (index, number) in numbers.iter().enumerate().filter(|(_, number)| !number.is_nan()) {
            assert_eq!(again[2 * index..][..2], codes[2 * index..][..2], "{number}");
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for elements in [1 << 16, (1 << 17) + 77] {
        let x: Vec<f32> = (0..elements).map(|at| (at as f32 * 0.37).sin() * (at % 1000) as f32).collect();
        for encoding in [Encoding::Fp16, Encoding::Bf16, Encoding::Int8] {
            let (mut bytes, mut back) = (vec![0xaa; encoding.bytes(elements)], vec![f32::NAN; elements]);
            pool.install(|| encoding.encode(&mut bytes, &x, Threads::Pool(3)));
            assert_eq!(bytes, encode(encoding, &x), "{encoding:?}");
            pool.install(|| encoding.decode(&mut back, &bytes, Threads::Pool(3))).unwrap();
            assert_eq!(bits(&back), bits(&decode(encoding, &bytes, elements)), "{encoding:?}");
        }
    }
}

proptest! {
    #[test]
    fn halves_round_to_the_nearest_and_saturate(x in prop::collection::vec(any_number(), 0..70)) {
        let finite = |infinity: u16, value: fn(u16) -> f64| (0..infinity).map(value).collect::<Vec<_>>();
        for (encoding, numbers) in HALVES.into_iter().zip([finite(0x7c00, half_value), finite(0x7f80, brain_value)]) {
            for (x, got) in x.iter().zip(there_and_back(encoding, &x)) {
                match x.is_finite() {
                    true => prop_assert_eq!(f64::from(got), nearest(*x, &numbers), "(A) {:?} of {}", encoding, x),
                    false => prop_assert_eq!((got.is_nan(), got > 0.0), (x.is_nan(), *x > 0.0), "(B)"),
                }
            }
        }
    }

    #[test]
    fn int8_errs_by_half_a_scale(len in 0usize..400, seed in any::<u32>(), power in -44f32..38.5) {
        let mut x = floats(len, seed.into());
        x.iter_mut().for_each(|x| *x *= 10f32.powf(power));
        x.iter_mut().for_each(|x| *x = x.clamp(f32::MIN, f32::MAX));
        let got = there_and_back(Encoding::Int8, &x);
        for (x, got) in x.chunks(int8::BLOCK).zip(got.chunks(int8::BLOCK)) {
            let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
            let bound = f64::from(largest) / 127.0 * 0.5001 + 2f64.powi(-119);
            // The greatest numbers have a scale that is a little too small.
            let bound = if largest > 3.4e38 { 1.02 * bound } else { bound };
            for (x, got) in x.iter().zip(got) {
                prop_assert!(got.is_finite(), "(B)");
                let error = (f64::from(*got) - f64::from(*x)).abs();
                prop_assert!(error <= bound, "(A) {} for {}, the largest is {}", got, x, largest);
            }
        }
    }

    #[test]
    fn a_block_that_is_not_finite_stays_so(
        len in 1usize..300,
        at in any::<prop::sample::Index>(),
        what in prop::sample::select(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY][..]),
    ) {
        let (mut x, at) = (floats(len, 1), at.index(len));
        x[at] = what;
        let (got, mut remainder) = (there_and_back(Encoding::Int8, &x), vec![0.0; len]);
        prop_assert!(got.iter().enumerate().all(|(i, got)| got.is_finite() == (i / int8::BLOCK != at / int8::BLOCK)), "(B)");
        for encoding in [Encoding::Int8, Encoding::TopK { fraction: 0.1 }] {
            let mut bytes = vec![0; encoding.bytes(len)];
            encoding.encode_with_remainder(&mut bytes, &x, &mut remainder);
            prop_assert!(remainder.iter().all(|x| x.is_finite()), "{:?}", encoding);
            prop_assert!(!decode(encoding, &bytes, len).iter().all(|x| x.is_finite()), "(B) {:?}", encoding);
        }
    }

    /// Encodes several gradients one after the other, and adds up what is decoded of them (C).
    #[test]
    fn nothing_is_dropped_for_ever(
        steps in (0usize..300).prop_flat_map(|len| prop::collection::vec(usual(len), 1..6)),
        fraction in 0.01f64..0.5,
    ) {
        let len = steps[0].len();
        for encoding in [Encoding::Int8, Encoding::TopK { fraction }] {
            let (mut remainder, mut sums, mut scale) = (vec![0.0; len], vec![0.0; len], 0.0);
            let mut bytes = vec![0; encoding.bytes(len)];
            for x in &steps {
                encoding.encode_with_remainder(&mut bytes, x, &mut remainder);
                for (sum, decoded) in sums.iter_mut().zip(decode(encoding, &bytes, len)) {
                    *sum += f64::from(decoded);
                }
                scale = x.iter().fold(scale, |scale: f64, x| scale + f64::from(x.abs()));
            }
            for i in 0..len {
                let expected: f64 = steps.iter().map(|x| f64::from(x[i])).sum();
                let got = sums[i] + f64::from(remainder[i]);
                prop_assert!((got - expected).abs() <= 1e-6 * scale, "{:?}: {} and {}", encoding, got, expected);
            }
        }
    }

    #[test]
    fn top_k_keeps_the_largest(
        x in prop::collection::vec(prop_oneof![any_number(), -3f32..3.0, (-3i32..3).prop_map(|x| x as f32)], 1..200),
        fraction in 0.001f64..0.5,
    ) {
        let encoding = Encoding::TopK { fraction };
        let (mut bytes, mut remainder) = (vec![0; encoding.bytes(x.len())], vec![0.0; x.len()]);
        encoding.encode_with_remainder(&mut bytes, &x, &mut remainder);
        // Adding 0 turns -0 into 0, and a signalling NaN into a quiet one, which has a greater magnitude.
        let x: Vec<f32> = x.iter().map(|x| x + 0.0).collect();
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(x[i].to_bits() & 0x7fff_ffff), i));
        let count = (fraction * x.len() as f64).ceil() as usize;
        prop_assert_eq!(bytes.len(), 8 * count);
        let mut expected = vec![0.0; x.len()];
        order[..count].iter().for_each(|&i| expected[i] = x[i]);
        let same = |one: &[f32], other: &[f32]| one.iter().zip(other).all(|(x, y)| x == y || (x.is_nan() && y.is_nan()));
        prop_assert!(same(&decode(encoding, &bytes, x.len()), &expected));
        let rest: Vec<f32> = (0..x.len()).map(|i| if order[..count].contains(&i) || !x[i].is_finite() { 0.0 } else { x[i] }).collect();
        prop_assert!(same(&remainder, &rest));
    }

    #[test]
    fn no_bytes_make_decoding_panic(elements in 0usize..200, seed in any::<u64>(), fraction in 0.01f64..0.5) {
        for encoding in [Encoding::Fp16, Encoding::Bf16, Encoding::Int8, Encoding::TopK { fraction }] {
            let mut state = seed | 1;
            let bytes: Vec<u8> = (0..encoding.bytes(elements)).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u8
            }).collect();
            let mut x = vec![0.0; elements];
            let decoded = encoding.decode(&mut x, &bytes, Threads::One);
            prop_assert!(decoded.is_ok() || matches!(encoding, Encoding::TopK { .. }), "(D)");
        }
    }
}

#[test]
fn indices_out_of_order_are_refused() {
    let encoding = Encoding::TopK { fraction: 0.4 };
    let bytes = |indices: [u32; 2]| -> Vec<u8> {
        let numbers = [1f32, 2.0].map(f32::to_bits);
        indices.into_iter().chain(numbers).flat_map(u32::to_le_bytes).collect()
    };
    let decode = |indices| encoding.decode(&mut [0.0; 5], &bytes(indices), Threads::One);
    assert_eq!(decode([0, 4]), Ok(()));
    for (indices, position, least) in [([0, 5], 1, 1), ([2, 2], 1, 3), ([3, 1], 1, 4), ([u32::MAX, 0], 0, 0)]
    {
        let (index, elements) = (indices[position], 5);
        assert_eq!(decode(indices), Err(BadIndex { position, index, least, elements }));
    }
    let error = decode([0, 9]).unwrap_err().to_string();
    assert_eq!(error, "index 1 is 9, expected at least 1 and less than 5");
}

#[test]
fn the_bytes_of_every_encoding_are_fixed() {
    let x = [1.0, -2.5, 0.0, 127.0, 1e-8];
    for (encoding, expected) in [
        (Encoding::Fp16, "003c 00c1 0000 f057 0000 0000"),
        (Encoding::Bf16, "803f 20c0 0000 fe42 2c32 0000"),
        (Encoding::Int8, "0000803f 01 fe 00 7f 00 000000"),
    ] {
        let hex: String = encode(encoding, &x).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected.replace(' ', ""), "{encoding:?}");
    }
    let encoding = Encoding::TopK { fraction: 0.3 };
    let (mut bytes, mut remainder) = (vec![0; encoding.bytes(5)], [0.0; 5]);
    encoding.encode_with_remainder(&mut bytes, &x, &mut remainder);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "01000000 03000000 000020c0 0000fe42".replace(' ', ""));
    assert_eq!(remainder, [1.0, 0.0, 0.0, 0.0, 1e-8]);
}

#[test]
fn sizes_are_whole_words_and_shrink_only_if_smaller() {
    let top = Encoding::TopK { fraction: 0.01 };
    for (encoding, elements, bytes, shrinks) in [
        (Encoding::Fp16, 0, 0, false),
        (Encoding::Fp16, 1, 4, false),
        (Encoding::Bf16, 3, 8, true),
        (Encoding::Int8, 1, 8, false),
        (Encoding::Int8, 2, 8, false),
        (Encoding::Int8, 3, 8, true),
        (Encoding::Int8, 128, 132, true),
        (Encoding::Int8, 129, 140, true),
        (top, 0, 0, false),
        (top, 1, 8, false),
        (top, 100, 8, true),
        (top, 101, 16, true),
    ] {
        assert_eq!(encoding.bytes(elements), bytes, "{encoding:?} of {elements}");
        assert_eq!(encoding.shrinks(elements), shrinks, "{encoding:?} of {elements}");
    }
}

#[test]
fn every_length_of_a_tail_gives_the_same_numbers() {
    let x = floats(300, 5);
    for encoding in HALVES {
        let all = there_and_back(encoding, &x);
        for len in 0..300 {
            assert_eq!(bits(&there_and_back(encoding, &x[..len])), bits(&all[..len]), "{encoding:?} {len}");
        }
    }
    // The blocks of int8 begin at multiples of 128.
    let all = there_and_back(Encoding::Int8, &x);
    for (first, len) in [(0, 128), (128, 128), (256, 44)] {
        assert_eq!(there_and_back(Encoding::Int8, &x[first..][..len]), all[first..][..len]);
    }
}
