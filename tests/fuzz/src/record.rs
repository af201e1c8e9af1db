//! The target `record`: reads bytes as TFRecord frames, and their data as examples. If the first byte is
//! even, the checksums are corrected first.

use pushpull_input::Example;
use pushpull_storage::record::{HEAD_BYTES, TAIL_BYTES, check_data, masked_crc32c, read_head, write};

use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "record",
    about: &["messages/storage/src/record.rs", "worker/input/src/formats/tf_record/example.rs"],
    check,
    stages: &["head refused", "data refused", "a record", "an example"],
    seeds,
    ..Target::USUAL
};

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((&how, mut rest)) = bytes.split_first() else { return 0 };
    let mut reached = 0;
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let mut head = *head;
        if how % 2 == 0 {
            let checksum = masked_crc32c(&head[..8]);
            head[8..].copy_from_slice(&checksum.to_le_bytes());
        }
        let length = match read_head(head) {
            Ok(length) => length,
            Err(error) => {
                check_error(&error);
                break;
            }
        };
        reached = reached.max(1);
        let Some((data, behind)) = behind.split_at_checked(length) else { break };
        let Some((tail, behind)) = behind.split_first_chunk::<TAIL_BYTES>() else { break };
        let tail = if how % 2 == 0 { masked_crc32c(data).to_le_bytes() } else { *tail };
        if let Err(error) = check_data(data, tail) {
            check_error(&error);
            break;
        }
        reached = reached.max(2);
        if let Ok(example) = Example::from_bytes(data) {
            let again = Example::from_bytes(&example.to_bytes()).expect("what was written can be read");
            assert!(again.names().eq(example.names()), "an example is written as it was read");
            reached = 3;
        }
        rest = behind;
    }
    reached
}

/// Returns an example with a feature of every kind.
pub(crate) fn example(number: i64) -> Example {
    Example::new()
        .floats("x", vec![0.5, number as f32])
        .ints("label", vec![number % 3])
        .bytes("image", vec![1, 2, 3, number as u8])
        .strings("words", vec![b"a".to_vec(), b"bc".to_vec()])
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut two = vec![0];
    for number in [1, 7] {
        write(&mut two, &example(number).to_bytes()).expect("memory does not fail");
    }
    let mut empty = vec![1];
    write(&mut empty, b"").expect("memory does not fail");
    vec![("two".to_owned(), two), ("empty".to_owned(), empty)]
}
