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

/// Returns numbers as `bf16`.
fn narrow(numbers: &[f32]) -> Vec<u8> {
    let half = |&number: &f32| ((rounded(number, 7).to_bits() >> 16) as u16).to_le_bytes();
    numbers.iter().flat_map(half).collect()
}

/// Returns the case of products of these factors, which are rounded for the processor. The library gets them
/// as they are, or as `bf16`.
fn case(
    batch: usize,
    sizes: [usize; 3],
    transposed: [bool; 2],
    (precision, epilogue): (Precision, Epilogue),
    [a, b, bias]: [Vec<f32>; 3],
) -> Case {
    let product = Product::new(sizes, transposed[0], transposed[1]).unwrap();
    let [m, k, n] = sizes;
    let bits = match precision {
        Precision::F32 => 23,
        // Batches are never in `bf16`.
        Precision::Bf16 if batch == 1 => 7,
        Precision::Tf32 | Precision::Bf16 => 10,
    };
    let [of_a, of_b] = [&a, &b].map(|all| all.iter().map(|&x| rounded(x, bits)).collect::<Vec<f32>>());
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
    cases
}

/// Returns one product of each precision, for the budgets of kernels.
pub(crate) fn operations() -> Vec<Operation> {
    let product = Product::new([64, 64, 64], false, false).unwrap();
    let operation =
        |precision| Operation::product(&product, Epilogue::BiasRelu, Multiplier::Library(precision));
    let products = [Precision::F32, Precision::Tf32, Precision::Bf16].map(operation);
    products.into_iter().chain([Operation::narrow(1000)]).collect()
}

/// Returns the case of numbers that are stored as `bf16`.
fn narrowed(name: &str, numbers: Vec<f32>) -> Case {
    let (operation, output) = (Operation::narrow(numbers.len()), Data::U8(narrow(&numbers)));
    Case::new(name, operation, vec![Data::F32(numbers)], vec![output])
}

/// Returns cases of numbers, of which some are not finite, or as near to two others.
fn all_narrowed() -> Vec<Case> {
    let mut numbers = Numbers(52);
    let drawn = [0, 1, 3, 4, 5, 1000, 4099].map(|count| {
        let mut drawn = numbers.between(-3.0, 3.0, count);
        let special =
            [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -0.0, 1e-3];
        drawn.iter_mut().zip(special).for_each(|(number, special)| *number = special);
        narrowed(&format!("{count} numbers as bf16"), drawn)
    });
    drawn.to_vec()
}

/// Checks that what is not a number stays so, on each device.
#[test]
fn what_is_not_a_number_stays_so_in_bf16() {
    for bits in [0x7F80_0001, 0x7FC0_0000, 0xFFFF_FFFF] {
        for (name, mut device) in devices(53) {
            let case = Case::new(
                "NaN",
                Operation::narrow(1),
                vec![Data::F32(vec![f32::from_bits(bits)])],
                vec![Data::U8(vec![0; 2])],
            );
            device.load(&source_of(std::slice::from_ref(&case))).expect("our kernels compile");
            let outputs = case.run(&mut *device, false).expect("the kernel runs");
            let bytes = outputs[0].bytes();
            let half = u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16;
            assert!(f32::from_bits(half).is_nan(), "{bits:x} on {name}: {half:x}");
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
    let narrowed = if precision == Precision::Bf16 { all_narrowed() } else { Vec::new() };
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
fn numbers_are_rounded_to_the_nearest() {
    assert_eq!(rounded(1.0 + 1.0 / 256.0, 7), 1.0);
    assert_eq!(rounded(1.0 + 3.0 / 256.0, 7), 1.0 + 2.0 / 128.0);
    assert_eq!(rounded(-0.100_01, 7), -205.0 / 2048.0);
    assert_eq!(rounded(0.1, 23), 0.1);
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
    find_all_in(vec![narrowed("numbers", numbers)], &OF_BF16);
}
