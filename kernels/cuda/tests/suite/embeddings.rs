//! Rows of tables and their gradients agree with those of the processor, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu::{self, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

/// The number of rows of a table, their width, and the number of ids.
const SIZES: [[usize; 3]; 12] = [
    [1, 1, 1],
    [3, 4, 0],
    [0, 4, 0],
    [3, 0, 5],
    [5, 3, 2],
    [7, 1, 300],
    [2, 33, 257],
    [40, 7, 256],
    [300, 5, 31],
    [9, 300, 20],
    [1100, 2, 600],
    [4, 256, 33],
];

fn case(name: String, operation: Operation, inputs: [Data; 2], output: Vec<f32>) -> Case {
    Case { tolerance: 0.0, ..Case::new(name, operation, inputs.to_vec(), vec![Data::F32(output)]) }
}

fn gather(numbers: &mut Numbers, [rows, width, _]: [usize; 3], ids: &[i32]) -> Case {
    let table = numbers.between(-1.0, 1.0, rows * width);
    let mut output = vec![f32::NAN; ids.len() * width];
    cpu::gather_rows(&mut output, &table, ids, width, Threads::One).unwrap();
    let name = format!("{} rows of {width} of a table of {rows}", ids.len());
    let operation = Operation::gather(rows, width, ids.len());
    case(name, operation, [Data::F32(table), Data::I32(ids.to_vec())], output)
}

fn scatter(numbers: &mut Numbers, [rows, width, _]: [usize; 3], ids: &[i32]) -> Case {
    let gradient = numbers.between(-1.0, 1.0, ids.len() * width);
    let mut output = vec![0.0; rows * width];
    cpu::scatter_add_rows(&mut output, ids, &gradient, width, Threads::One).unwrap();
    let name = format!("{} rows of {width} added to a table of {rows}", ids.len());
    let operation = Operation::scatter(rows, width, ids.len());
    case(name, operation, [Data::I32(ids.to_vec()), Data::F32(gradient)], output)
}

/// Returns cases with random ids. Some ids are much more frequent than others.
pub(crate) fn drawn(numbers: &mut Numbers, sizes: [usize; 3]) -> [Case; 2] {
    let mut id = |_| {
        let below = 1 + numbers.below(sizes[0]);
        numbers.below(below) as i32
    };
    // Rows without elements are no rows for the processor.
    let ids: Vec<i32> = (0..if sizes[1] == 0 { 0 } else { sizes[2] }).map(&mut id).collect();
    [gather(numbers, sizes, &ids), scatter(numbers, sizes, &ids)]
}

/// Changes of the kernels of tables.
const MUTATIONS: [Mutation; 6] = [
    Mutation {
        name: "a row of which a column is taken for another",
        from: "(Index)id * width + at % width",
        to: "(Index)id * width + at % rows",
    },
    Mutation {
        name: "an id that every block owns",
        from: " && (unsigned)id % gridDim.x == blockIdx.x",
        to: "",
    },
    Mutation {
        name: "no barrier before the warps' numbers are read",
        from: "        // No thread reads the ids of the last tile any more.\n        __syncthreads();\n",
        to: "",
    },
    Mutation {
        name: "no barrier before the ids are read",
        from: "own_places[place] = threadIdx.x;\n        }\n        __syncthreads();",
        to: "own_places[place] = threadIdx.x;\n        }",
    },
    Mutation {
        name: "ids in the reverse order",
        from: "__popc(of_warp & lower_lanes)",
        to: "__popc(of_warp & ~lower_lanes) - is_own",
    },
    Mutation {
        name: "an id too many",
        from: "id = first + threadIdx.x < count",
        to: "id = first + threadIdx.x <= count",
    },
];

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let mut numbers = Numbers(60);
    SIZES.iter().flat_map(|&sizes| drawn(&mut numbers, sizes)).collect()
}

#[test]
fn rows_of_tables_agree() {
    agree(&cases(), 60);
}

#[test]
fn equal_ids_are_added_in_their_order() {
    let mut numbers = Numbers(61);
    let runs: Vec<i32> = (0..600).map(|at| at / 70 % 3).collect();
    let equal = vec![1; 600];
    let turns: Vec<i32> = (0..600).map(|at| at % 3).collect();
    let mut cases = Vec::new();
    for ids in [&runs, &equal, &turns] {
        // The cases of even numbers have a block for each row.
        cases.extend([scatter(&mut numbers, [3, 3, 600], ids), scatter(&mut numbers, [3, 2, 600], ids)]);
    }
    agree(&cases, 61);
}

#[test]
fn an_id_that_is_no_row_spoils_no_other() {
    let ids = Data::I32(vec![1, -1, 3, i32::MIN, i32::MAX, 2]);
    let rows = Data::F32(Numbers(62).between(-1.0, 1.0, 6));
    let Data::F32(x) = &rows else { unreachable!() };
    let nan = f32::NAN;
    let gathered = [&x[2..4], &[nan; 8], &x[4..6]].concat();
    let dy = (0..12).map(|at| at as f32).collect();
    let added = vec![0.0, 0.0, 0.0, 1.0, 10.0, 11.0];
    let cases = [
        case("gather".to_owned(), Operation::gather(3, 2, 6), [rows.clone(), ids.clone()], gathered),
        case("scatter".to_owned(), Operation::scatter(3, 2, 6), [ids, Data::F32(dy)], added),
    ];
    agree(&cases, 62);
}

#[test]
fn every_mutation_of_tables_is_found() {
    let mut numbers = Numbers(63);
    find_all_in([[5, 3, 300], [3, 40, 600]].map(|sizes| drawn(&mut numbers, sizes)).concat(), &MUTATIONS);
}
