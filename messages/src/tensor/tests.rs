//! Tests of tensors: their bytes round-trip, and hostile bytes are refused.

use proptest::prelude::*;

use super::*;
use crate::fixtures::tensors::any_tensor;

#[test]
fn a_tensor_has_as_many_elements_as_places() {
    assert_eq!(Tensor::new([2, 1], vec![1i64, 2]).unwrap().spec(), TensorSpec::new(DType::I64, [2, 1]));
    assert_eq!(Tensor::new([0, 3], vec![0f32; 0]).unwrap().f32s(), Some(&[][..]));
    let error = Tensor::new([2], vec![true]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a tensor of the shape [2] has 1 elements, expected as many as the shape has places"
    );
    assert!(Tensor::new([usize::MAX, 2], vec![0u8; 2]).is_err());
    assert!(Tensor::new([1; 9], vec![0u8]).unwrap_err().to_string().contains("at most 8 axes"));
}

#[test]
fn a_tensor_is_made_from_plain_values() {
    assert_eq!(Tensor::from("a").texts(), Some(&["a".to_owned()][..]));
    assert_eq!(Tensor::from(["a", "b"]), Tensor::vector(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(Tensor::from(2i64).shape(), &Shape::scalar());
    assert_eq!(Tensor::from([1.5f32, 2.0]).into_elements(), Elements::F32(vec![1.5, 2.0]));
    assert_eq!(Tensor::from(vec![1u8]).i32s(), None);
    for dtype in DType::ALL {
        let spec = TensorSpec::new(dtype, [2, 3]);
        assert_eq!(Tensor::zeros(&spec).unwrap().spec(), spec);
    }
}

#[test]
fn invalid_bytes_are_refused() {
    let text = |count: usize| TensorSpec::new(DType::Text, [count]);
    for (spec, bytes, expected) in [
        (TensorSpec::f32([2]), &[0; 7][..], "a tensor f32[2] has 7 bytes, expected 4 for each element"),
        (TensorSpec::new(DType::F64, [usize::MAX]), &[0; 8], "has 8 bytes, expected 8 for each"),
        (TensorSpec::new(DType::U8, [1 << 40]), &[0; 8], "has 8 bytes, expected 1 for each"),
        (TensorSpec::new(DType::Bool, [2]), &[1, 2], "element 1 of a tensor of bool is not valid"),
        (text(1 << 40), &[0; 64], "expected 4 bytes for the length of each text"),
        (text(usize::MAX), &[], "expected 4 bytes for the length of each text"),
        (text(1), &[255, 255, 255, 255, 0], "element 0 of a tensor of text is not valid: expected a length"),
        (text(2), &[4, 0, 0, 0, b'a', b'b', b'c', b'd'], "element 1 of a tensor of text"),
        (text(1), &[1, 0, 0, 0, 0x80], "expected UTF-8"),
        (text(1), &[0, 0, 0, 0, 0], "expected no bytes after the last text"),
        (TensorSpec::new(DType::U8, [1; 9]), &[0], "at most 8 axes"),
    ] {
        let error = Tensor::from_bytes(&spec, bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "expected '{expected}' in: {error}");
    }
}

proptest! {
    #[test]
    fn a_tensor_round_trips_bit_for_bit(tensor in any_tensor()) {
        let bytes = tensor.to_bytes();
        prop_assert_eq!(bytes.len(), tensor.bytes_len());
        let again = Tensor::from_bytes(&tensor.spec(), &bytes).unwrap();
        prop_assert_eq!(again.spec(), tensor.spec());
        // The bytes are compared, because NaN does not equal itself.
        prop_assert_eq!(again.to_bytes(), bytes.clone());
        let json = serde_json::to_string(&tensor).unwrap();
        prop_assert_eq!(serde_json::from_str::<Tensor>(&json).unwrap().to_bytes(), bytes.clone());
        let packed = rmp_serde::to_vec_named(&tensor).unwrap();
        prop_assert!(packed.len() <= bytes.len() + 128, "{} bytes for {}", packed.len(), bytes.len());
        prop_assert_eq!(rmp_serde::from_slice::<Tensor>(&packed).unwrap().to_bytes(), bytes);
    }

    #[test]
    fn any_bytes_are_accepted_or_refused(
        extents in prop::collection::vec(prop_oneof![8 => 0usize..4, 1 => any::<usize>()], 0..4),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        bytes in prop::collection::vec(prop_oneof![2 => 0u8..4, 1 => any::<u8>()], 0..64),
    ) {
        let spec = TensorSpec::new(dtype, extents);
        if let Ok(tensor) = Tensor::from_bytes(&spec, &bytes) {
            prop_assert_eq!(tensor.spec(), spec);
            prop_assert_eq!(tensor.to_bytes(), bytes);
        }
    }
}
