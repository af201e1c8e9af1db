//! Reads files that pyarrow 26.0.1 has written, with these lines:
//!
//! `table = pa.table({"x": pa.array([i + 0.5 for i in range(6)]), "flag": pa.array([i % 3 == 0 for i in
//! range(6)]), "word": pa.array(["even", "odd"] * 3).dictionary_encode(), "image": pa.array([[i, 0, 255, 2 *
//! i] for i in range(6)], pa.list_(pa.uint8(), 4)), "pairs": pa.array([[[i, 1], [2, 3]] for i in range(6)]),
//! "gap": pa.array([None if i == 4 else i for i in range(6)], pa.int16())})`, then `write_all` below.

use std::path::PathBuf;

use pushpull_messages::input::{
    CategorySpec, DatasetSpec, ListKind, ListSpec, NumberSpec, TableFieldsSpec, TableSpec,
};

use super::written::column;
use super::{opened, rest};
use crate::Column;

// def write_all():
//     pq.write_table(table, "pyarrow.parquet", row_group_size=4, compression="zstd", write_statistics=False)
//     feather.write_feather(table, "pyarrow.feather", compression="lz4", chunksize=4)
//     with pa.ipc.new_stream("pyarrow.arrows", table.schema) as out:
//         out.write_table(table, max_chunksize=4)
//     plain = table.set_column(2, "word", table["word"].cast(pa.string()))
//     how = dict(write_statistics=False, use_dictionary=False, store_schema=False)
//     delta = {"x": "BYTE_STREAM_SPLIT", "flag": "RLE", "word": "DELTA_BYTE_ARRAY"}
//     lists = ["image.list.element", "pairs.list.element.list.element", "gap"]
//     delta |= {name: "DELTA_BINARY_PACKED" for name in lists}
//     pq.write_table(plain, "pyarrow-delta.parquet", row_group_size=4, compression="none",
//         column_encoding=delta, data_page_version="2.0", **how)
//     pq.write_table(plain, "pyarrow-plain.parquet", row_group_size=6, compression="snappy",
//         column_encoding={"word": "DELTA_LENGTH_BYTE_ARRAY"}, **how)

fn table(name: &str) -> TableSpec {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/formats/columnar/testdata").join(name);
    let list = |field: &str, kind, shape: &[usize]| {
        TableFieldsSpec::List(ListSpec::new(field, kind, shape.to_vec()))
    };
    let gap = NumberSpec { missing: Some(-1.0), ..NumberSpec::new("gap") };
    let columns = vec![
        column(
            "features",
            TableFieldsSpec::Numbers(vec![NumberSpec::new("x"), NumberSpec::new("flag"), gap]),
        ),
        column("labels", TableFieldsSpec::Category(CategorySpec::new("word", &["odd", "even"], None))),
        column("image", list("image", ListKind::Pixels, &[2, 2])),
        column("flat", list("image", ListKind::Bytes, &[4])),
        column("pairs", list("pairs", ListKind::Integer, &[2, 2])),
    ];
    TableSpec { files: vec![path], columns }
}

#[test]
fn files_of_pyarrow_are_read() {
    let row = |at: i32| {
        let (x, gap) = (at as f32, if at == 4 { -1.0 } else { at as f32 });
        vec![
            Column::F32(vec![x + 0.5, if at % 3 == 0 { 1.0 } else { 0.0 }, gap]),
            Column::I32(vec![(at + 1) % 2]),
            Column::F32(vec![x / 255.0, 0.0, 1.0, 2.0 * x / 255.0]),
            Column::I32(vec![at, 0, 255, 2 * at]),
            Column::I32(vec![at, 1, 2, 3]),
        ]
    };
    for set in [
        DatasetSpec::Parquet(table("pyarrow.parquet")),
        DatasetSpec::Parquet(table("pyarrow-delta.parquet")),
        DatasetSpec::Parquet(table("pyarrow-plain.parquet")),
        DatasetSpec::Arrow(table("pyarrow.feather")),
        DatasetSpec::Arrow(table("pyarrow.arrows")),
    ] {
        let set = opened(&set, 0).unwrap();
        for skipped in 0..6 {
            let expected: Vec<_> = (skipped..6).map(row).collect();
            assert_eq!(rest(&*set, skipped as u64, 4).unwrap(), expected, "{skipped}");
        }
    }
}
