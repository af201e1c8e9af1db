//! Products that the library of a device computes agree with those of the processor. On the emulator, kernels
//! stand in for the library.

use pushpull_cuda::{Epilogue, Multiplier, Operation, Precision};
use pushpull_kernels::cpu::{self, Product, Threads};

use crate::case::{Case, Data, agree_on, source_of};
use crate::devices::devices;
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;
use crate::products::tolerance;

/// Sizes `[m, k, n]` of products. Some have lines that begin at odd places.
const SIZES: [[usize; 3]; 8] =
    [[1, 1, 1], [3, 0, 5], [2, 5, 0], [64, 16, 64], [65, 17, 63], [5, 300, 7], [257, 18, 10], [96, 520, 132]];

const TRANSPOSED: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

/// Returns a number rounded to this number of bits behind the point, to an even one if two are equally near.
fn rounded(number: f32, bits: u32) -> f32 {
    if !number.is_finite() || number == 0.0 {
        return number;
    }
    let wide = f64::from(number);
    // The distance of two such numbers that are as large as this one.
    let step = 2f64.powi(wide.abs().log2().floor() as i32 - bits.cast_signed());
    ((wide / step).round_ties_even() * step) as f32
}

/// Returns by what numbers are multiplied before they are stored as `fp16`.
fn scale(numbers: &[f32]) -> f64 {
    let largest =
        numbers.iter().map(|number| number.abs()).filter(|number| number.is_finite()).fold(0.0, f32::max);
    if largest == 0.0 {
        1.0
    } else {
        2f64.powi((14 - f64::from(largest).log2().floor() as i32).clamp(-63, 63))
    }
}

/// Returns a number rounded to what `fp16` can store of it, after it is multiplied by `scale`.
fn rounded_half(number: f32, scale: f64) -> f32 {
    let wide = f64::from(number) * scale;
    let exponent = if wide == 0.0 { -14.0 } else { wide.abs().log2().floor().max(-14.0) };
    let rounded = (wide / 2f64.powf(exponent - 10.0)).round_ties_even() * 2f64.powf(exponent - 10.0);
    // What is rounded to 65536 or more is infinite.
    if rounded.abs() < 65536.0 || number.is_nan() { rounded as f32 } else { f32::INFINITY.copysign(number) }
}

/// Returns numbers as `fp16`, with the float behind them.
fn half(numbers: &[f32]) -> Vec<u8> {
    let scale = scale(numbers);
    let bits = |&number: &f32| {
        let (number, sign) =
            (rounded_half(number, scale), if number.is_sign_negative() { 0x8000 } else { 0 });
        let size = f64::from(number.abs());
        let bits: u16 = if number.is_nan() {
            0x7E00
        } else if number.is_infinite() {
            0x7C00
        } else if size < 2f64.powi(-14) {
            (size * 2f64.powi(24)) as u16
        } else {
            let exponent = size.log2().floor() as i32;
            ((exponent + 15) << 10) as u16 + ((size / 2f64.powi(exponent) - 1.0) * 1024.0) as u16
        };
        bits | sign
    };
    let mut all: Vec<u16> = numbers.iter().map(bits).collect();
    all.resize(numbers.len().next_multiple_of(2), 0);
    let mut bytes: Vec<u8> = all.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    bytes.extend(numbers.first().map(|_| (1.0 / scale) as f32).into_iter().flat_map(f32::to_le_bytes));
    bytes
}

/// Returns numbers as `bf16`.
fn narrow(numbers: &[f32]) -> Vec<u8> {
    let half = |&number: &f32| ((rounded(number, 7).to_bits() >> 16) as u16).to_le_bytes();
    numbers.iter().flat_map(half).collect()
}

/// Returns the case of products of these factors, which are rounded for the processor. The library gets them
/// as they are, or in two bytes each.
fn case(
    batch: usize,
    sizes: [usize; 3],
    transposed: [bool; 2],
    (precision, epilogue): (Precision, Epilogue),
    [a, b, bias]: [Vec<f32>; 3],
) -> Case {
    let product = Product::new(sizes, transposed[0], transposed[1]).unwrap();
    let [m, k, n] = sizes;
    let of_factor = |all: &Vec<f32>| -> Vec<f32> {
        let scale = scale(all);
        let own = |&number: &f32| match precision {
            Precision::F32 => number,
            // Batches are never in two bytes each.
            Precision::Bf16 if batch == 1 => rounded(number, 7),
            Precision::Fp16 if batch == 1 => (f64::from(rounded_half(number, scale)) / scale) as f32,
            Precision::Tf32 | Precision::Bf16 | Precision::Fp16 => rounded(number, 10),
        };
        all.iter().map(own).collect()
    };
    let [of_a, of_b] = [&a, &b].map(of_factor);
    let mut output = vec![f32::NAN; batch * m * n];
    let mut scratch = vec![f32::NAN; cpu::batched_matmul_scratch(batch, &product, Threads::One)];
    cpu::batched_matmul(&mut output, &of_a, &of_b, batch, &product, &mut scratch, Threads::One);
    for (at, element) in output.iter_mut().enumerate() {
        match epilogue {
            Epilogue::Bare => {}
            Epilogue::Bias => *element += bias[at % n],
            Epilogue::BiasRelu => {
                *element += bias[at % n];
                *element = if *element < 0.0 { 0.0 } else { *element };
            }
        }
    }
    let name = format!("{batch} times {sizes:?}, transposed {transposed:?}, {epilogue:?}, {precision}");
    let multiplier = Multiplier::Library(precision);
    let mut inputs = match precision {
        Precision::Bf16 if batch == 1 => [a, b].map(|factor| Data::U8(narrow(&factor))).to_vec(),
        Precision::Fp16 if batch == 1 => [a, b].map(|factor| Data::U8(half(&factor))).to_vec(),
        _ => vec![Data::F32(a), Data::F32(b)],
    };
    let operation = match batch {
        1 => Operation::product(&product, epilogue, multiplier),
        _ => Operation::batched_product(batch, &product, multiplier),
    };
    inputs.extend((epilogue != Epilogue::Bare).then_some(Data::F32(bias)));
    Case { tolerance: tolerance(k), ..Case::new(name, operation, inputs, vec![Data::F32(output)]) }
}

/// Returns a case of random numbers. Cards need not round to TF32 as the emulator does, so the factors are
/// such numbers.
fn drawn(
    numbers: &mut Numbers,
    batch: usize,
    sizes: [usize; 3],
    transposed: [bool; 2],
    how: (Precision, Epilogue),
) -> Case {
    let [m, k, n] = sizes;
    let mut inputs = [batch * m * k, batch * k * n, n].map(|count| numbers.between(-1.0, 1.0, count));
    if how.0 != Precision::F32 && (how.0 == Precision::Tf32 || batch > 1) {
        inputs.iter_mut().flatten().for_each(|number| *number = rounded(*number, 10));
    }
    case(batch, sizes, transposed, how, inputs)
}

fn cases(precision: Precision) -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(50), Vec::new());
    let epilogues = [Epilogue::Bare, Epilogue::Bias, Epilogue::BiasRelu];
    for (at, sizes) in SIZES.into_iter().enumerate() {
        for (more, epilogue) in epilogues.into_iter().enumerate() {
            cases.push(drawn(&mut numbers, 1, sizes, TRANSPOSED[(at + more) % 4], (precision, epilogue)));
        }
    }
    for (at, transposed) in TRANSPOSED.into_iter().enumerate() {
        cases.push(drawn(&mut numbers, 3, [6 + at, 7, 5], transposed, (precision, Epilogue::Bare)));
    }
    for epilogue in epilogues {
        let [mut a, mut b, mut bias] = [15, 18, 6].map(|count| numbers.between(-1.0, 1.0, count));
        (a[1], a[14], b[2], bias[4]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
        cases.push(case(1, [5, 3, 6], TRANSPOSED[0], (precision, epilogue), [a, b, bias]));
    }
    // With the largest and the smallest scales of `fp16`, too.
    for sizes in [[1e-9, 1e10], [1e12, 1e-11], [1e-18, 1e19], [1e17, 1e15]] {
        let [mut a, mut b, bias] = [35, 42, 6].map(|count| numbers.between(0.5, 1.0, count));
        for (numbers, size) in [&mut a, &mut b].into_iter().zip(sizes) {
            numbers.iter_mut().for_each(|number| *number = rounded(*number, 7) * size);
        }
        let how = (precision, Epilogue::Bare);
        let wide = case(1, [5, 7, 6], TRANSPOSED[0], how, [a, b, bias]);
        cases.push(Case { tolerance: 0.01, ..wide });
    }
    cases
}

/// Returns one product of each precision, for the budgets of kernels.
pub(crate) fn operations() -> Vec<Operation> {
    let product = Product::new([64, 64, 64], false, false).unwrap();
    let operation =
        |precision| Operation::product(&product, Epilogue::BiasRelu, Multiplier::Library(precision));
    let narrow = [Precision::Bf16, Precision::Fp16];
    let products = [Precision::F32, Precision::Tf32].into_iter().chain(narrow).map(operation);
    products.chain(narrow.map(|precision| Operation::narrow(1000, precision))).collect()
}

/// Returns the case of numbers that are stored in two bytes each.
fn narrowed(name: &str, precision: Precision, numbers: Vec<f32>) -> Case {
    let stored = if precision == Precision::Fp16 { half(&numbers) } else { narrow(&numbers) };
    let operation = Operation::narrow(numbers.len(), precision);
    Case::new(name, operation, vec![Data::F32(numbers)], vec![Data::U8(stored)])
}

/// Returns cases of numbers, of which some are not finite, or as near to two others.
fn all_narrowed(precision: Precision) -> Vec<Case> {
    let mut numbers = Numbers(52);
    let mut cases = Vec::new();
    // Large numbers, small ones, and those of which many are subnormal in `fp16`.
    let sizes: &[f32] = if precision == Precision::Fp16 { &[1.0, 1e-30, 1e30, 1e-42] } else { &[1.0] };
    for &size in sizes {
        let mut drawn = numbers.between(-3.0, 3.0, 1003);
        drawn.iter_mut().enumerate().for_each(|(at, number)| *number *= size / (1u64 << (at % 40)) as f32);
        cases.push(narrowed(&format!("numbers below {size} in {precision}"), precision, drawn));
    }
    let drawn = [0, 1, 3, 4, 5, 1000, 4099].map(|count| {
        let mut drawn = numbers.between(-3.0, 3.0, count);
        let special =
            [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -0.0, 1e-3];
        drawn.iter_mut().zip(special).for_each(|(number, special)| *number = special);
        narrowed(&format!("{count} numbers in {precision}"), precision, drawn)
    });
    cases.extend(drawn);
    cases
}

/// Checks that what is not a number stays so, on each device.
#[test]
fn what_is_not_a_number_stays_so_in_two_bytes() {
    let all = [0x7F80_0001, 0x7FC0_0000, 0xFFFF_FFFF];
    for (bits, precision) in
        all.into_iter().flat_map(|bits| [(bits, Precision::Bf16), (bits, Precision::Fp16)])
    {
        let stored = if precision == Precision::Fp16 { 8 } else { 2 };
        for (name, mut device) in devices(53) {
            let case = Case::new(
                "NaN",
                Operation::narrow(1, precision),
                vec![Data::F32(vec![f32::from_bits(bits)])],
                vec![Data::U8(vec![0; stored])],
            );
            device.load(&source_of(std::slice::from_ref(&case))).expect("our kernels compile");
            let outputs = case.run(&mut *device, false).expect("the kernel runs");
            let bytes = outputs[0].bytes();
            let half = u16::from_le_bytes([bytes[0], bytes[1]]);
            let infinite = if precision == Precision::Fp16 { 0x7C00 } else { 0x7F80 };
            assert!(half & 0x7FFF > infinite, "{bits:x} in {precision} on {name}: {half:x}");
        }
    }
}

/// Checks that all devices with a library agree.
fn agree(precision: Precision) {
    let mut found = Vec::new();
    for (name, mut device) in devices(50) {
        match name == "emulated" || device.has_library() {
            true => found.push((name, device)),
            false => println!("SKIPPED: {name} has no libcublasLt, so its products are NOT tested."),
        }
    }
    let narrowed = if precision.is_narrow() { all_narrowed(precision) } else { Vec::new() };
    agree_on(found, &[cases(precision), narrowed].concat());
}

#[test]
fn products_of_libraries_agree() {
    agree(Precision::F32);
}

#[test]
fn products_of_libraries_in_tf32_agree() {
    agree(Precision::Tf32);
}

#[test]
fn products_of_libraries_in_bf16_agree() {
    agree(Precision::Bf16);
}

#[test]
fn products_of_libraries_in_fp16_agree() {
    agree(Precision::Fp16);
}

#[test]
fn numbers_are_rounded_to_the_nearest() {
    assert_eq!(rounded(1.0 + 1.0 / 256.0, 7), 1.0);
    assert_eq!(rounded(1.0 + 3.0 / 256.0, 7), 1.0 + 2.0 / 128.0);
    assert_eq!(rounded(-0.100_01, 7), -205.0 / 2048.0);
    assert_eq!(rounded(0.1, 23), 0.1);
    assert_eq!(
        [rounded_half(1e-7, 1.0), rounded_half(1.0 + 1.0 / 1024.0, 2.0)],
        [2f32.powi(-23), 2.0 + 2.0 / 1024.0]
    );
    // 1, 3, and the infinite number, multiplied by 2 to the power of 13.
    assert_eq!(half(&[1.0, -3.0, f32::INFINITY])[..6], [0, 0x70, 0, 0xF6, 0, 0x7C]);
}

/// Changes of the kernel that stores numbers as `bf16`.
const OF_BF16: [Mutation; 5] = [
    Mutation {
        name: "numbers that are cut off",
        from: "return (bits + LAST / 2 + (bits >> BITS & 1)) & ~LAST;",
        to: "return bits & ~LAST;",
    },
    Mutation {
        name: "two equally near numbers of which the larger one is taken",
        from: "LAST / 2 + (bits >> BITS & 1)",
        to: "LAST / 2 + 1",
    },
    Mutation {
        name: "no last numbers",
        from: "for (Count rest = at; rest < n; rest++)",
        to: "if (false) for (Count rest = at;;)",
    },
    Mutation {
        name: "numbers that change places",
        from: "make_uint2(a | b, c | d)",
        to: "make_uint2(c | d, a | b)",
    },
    Mutation { name: "one number too many", from: "if (at + 4 <= n) {", to: "if (at < n) {" },
];

#[test]
fn every_mutation_of_bf16_is_found() {
    let mut numbers = Numbers(51).between(-1.0, 1.0, 14);
    numbers.extend([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX]);
    find_all_in(vec![narrowed("numbers", Precision::Bf16, numbers)], &OF_BF16);
}

/// Changes of the kernels that store numbers as `fp16`.
const OF_FP16: [Mutation; 8] = [
    Mutation { name: "sums that have the scale of a factor", from: "to[0] = a * b;", to: "to[0] = a;" },
    Mutation {
        name: "too large a number that stays finite",
        from: "if (bits >= 0x477FF000) return",
        to: "if (bits >= 0x7F800000) return",
    },
    Mutation {
        name: "a largest number that may be infinite",
        from: "return number > own && number < -MINUS_INFINITY ? number : own;",
        to: "return number > own ? number : own;",
    },
    Mutation {
        name: "only the largest number of some blocks",
        from: "for (Count at = threadIdx.x; at < PARTS; at += blockDim.x) own = larger(own, largest[at]);",
        to: "own = largest[0];",
    },
    Mutation {
        name: "a scale that is twice as large",
        from: "int power = 14 + 127",
        to: "int power = 15 + 127",
    },
    Mutation {
        name: "no smallest numbers",
        from: "if (bits < 0x38800000) return",
        to: "if (bits < 0x38800000) return sign; if (bits == 1) return",
    },
    Mutation {
        name: "an infinite number that becomes finite",
        from: "return sign | 0x7C00;",
        to: "return sign | 0x7BFF;",
    },
    Mutation { name: "a scale that is not stored", from: "= power_of_two(-power);", to: "= 1.0f;" },
];

#[test]
fn every_mutation_of_fp16_is_found() {
    let mut numbers = Numbers(51).between(-1.0, 1.0, 2057);
    numbers.extend([1.0 + 1.0 / 2048.0, f32::INFINITY, 1e-9, 3e-9, -1e-12, 3.9999]);
    let product = drawn(&mut Numbers(54), 1, [3, 5, 7], TRANSPOSED[0], (Precision::Fp16, Epilogue::Bare));
    let large = narrowed("large numbers", Precision::Fp16, vec![1.0, 2.0, 1e30]);
    find_all_in(vec![narrowed("numbers", Precision::Fp16, numbers), large, product], &OF_FP16);
}
