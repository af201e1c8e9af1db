//! Tests windows of files and of generated texts: their positions, their labels, and the errors for texts
//! that are shorter than a window.

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Column;
use crate::tests::damaged::{data_dir, gzip, write};

/// Returns the tokens and the labels of every example.
fn examples(set: &InMemory) -> Vec<[Vec<u8>; 2]> {
    let mut columns = Vec::new();
    let bytes =
        |column: &Column| column.i32().unwrap().iter().map(|&token| u8::try_from(token).unwrap()).collect();
    (0..set.len() as u32)
        .map(|example| {
            set.fill(&[example], &mut columns);
            [bytes(&columns[0]), bytes(&columns[1])]
        })
        .collect()
}

#[test]
fn labels_are_the_next_tokens() {
    let text = b"abcdefghij".to_vec();
    let every = dataset("x", text.clone(), &WindowsSpec::every(3, 0.0, 0.5)).unwrap();
    assert_eq!(examples(&every), [[*b"abc", *b"bcd"], [*b"bcd", *b"cde"]].map(|pair| pair.map(Vec::from)));
    let apart = dataset("x", text, &WindowsSpec::apart(2, 0.5, 1.0)).unwrap();
    assert_eq!(examples(&apart), [[*b"fg", *b"gh"], [*b"hi", *b"ij"]].map(|pair| pair.map(Vec::from)));
}

#[test]
fn every_byte_is_a_token() {
    let set = dataset("x", vec![0, 255, 128], &WindowsSpec::every(2, 0.0, 1.0)).unwrap();
    let mut columns = Vec::new();
    set.fill(&[0], &mut columns);
    assert_eq!(columns, [Column::I32(vec![0, 255]), Column::I32(vec![255, 128])]);
}

proptest! {
    /// Checks that the two parts of a text share no byte (A), that no window extends beyond its part (B),
    /// and that the functions `description` and `dataset` agree.
    #[test]
    fn windows_stay_within_their_part(
        bytes in 1usize..300, length in 1u32..20, stride in 1u32..20, split in 0.0f64..1.0,
    ) {
        let text: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let mut covered = Vec::new();
        for (begin, end) in [(0.0, split), (split, 1.0)] {
            let windows = WindowsSpec { length, stride, begin, end };
            let set = dataset("x", text.clone(), &windows);
            prop_assert_eq!(set.is_ok(), description("x", bytes as u64, &windows).is_ok());
            let part = (bytes as f64 * begin).floor() as usize..(bytes as f64 * end).floor() as usize;
            let Ok(set) = set else {
                prop_assert!(part.len() < length as usize + 1);
                continue;
            };
            let described = description("x", bytes as u64, &windows).unwrap();
            prop_assert_eq!((set.len() as u64, set.columns()), (described.examples, &described.columns[..]));
            for (index, [features, labels]) in examples(&set).into_iter().enumerate() {
                let at = part.start + index * stride as usize;
                prop_assert!(at + (length as usize) < part.end);
                prop_assert_eq!(features, &text[at..at + length as usize]);
                prop_assert_eq!(labels, &text[at + 1..at + 1 + length as usize]);
            }
            // One more window would not fit.
            prop_assert!(part.start + set.len() * stride as usize + length as usize + 1 > part.end);
            covered.push(part);
        }
        if let [first, second] = &covered[..] {
            prop_assert_eq!(first.end, second.start);
        }
    }
}

#[test]
fn texts_that_are_too_short_are_refused() {
    let folder = TempDir::new().unwrap();
    for bytes in [&b""[..], b"abc"] {
        for bytes in [bytes.to_vec(), gzip(bytes)] {
            let file = write(folder.path(), "text", &bytes);
            let windows = WindowsSpec::every(3, 0.0, 1.0);
            for error in [load(&file, &windows).unwrap_err(), describe(&file, &windows).unwrap_err()] {
                assert!(matches!(&error, InputError::ShortText { expected: 4, .. }), "{error}");
                assert!(error.to_string().contains("text"), "{error}");
            }
        }
    }
    let missing = load(&folder.path().join("none"), &WindowsSpec::every(3, 0.0, 1.0)).unwrap_err();
    assert!(matches!(missing, InputError::Missing { .. }));
}

#[test]
fn damaged_gzips_are_refused() {
    let folder = TempDir::new().unwrap();
    let windows = WindowsSpec::every(3, 0.0, 1.0);
    let packed = gzip(b"a text that is long enough");
    for len in 2..packed.len() {
        let file = write(folder.path(), "text", &packed[..len]);
        assert!(matches!(load(&file, &windows), Err(InputError::Read { .. })), "{len}");
        assert!(matches!(describe(&file, &windows), Err(InputError::Read { .. })), "{len}");
    }
    let file = write(folder.path(), "text", &[&packed[..], b"rest"].concat());
    assert!(matches!(load(&file, &windows), Err(InputError::Read { .. })));
    let file = write(folder.path(), "text", &packed);
    assert_eq!(describe(&file, &windows).unwrap().examples, load(&file, &windows).unwrap().len() as u64);
}

#[test]
fn reads_the_real_tinyshakespeare() {
    let Some(folder) = data_dir("tinyshakespeare") else { return };
    let file = folder.join("input.txt");
    let train = load(&file, &WindowsSpec::every(64, 0.0, 0.9)).unwrap();
    assert_eq!(train.len(), 1_003_854 - 64);
    assert_eq!(examples(&load(&file, &WindowsSpec::apart(13, 0.0, 1e-3)).unwrap())[0][0], b"First Citizen");
    assert_eq!(describe(&file, &WindowsSpec::apart(64, 0.9, 1.0)).unwrap().examples, (111_540 - 65) / 64 + 1);
}
