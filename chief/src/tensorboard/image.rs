//! Encodes images as PNG files.

use png::{BitDepth, ColorType, Compression, Encoder, EncodingError};
use pushpull_messages::summary::ImageSpec;

/// Encodes an image as a PNG file. The image must have been validated.
pub(super) fn encode(image: &ImageSpec) -> Result<Vec<u8>, EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, image.width, image.height);
    encoder.set_color(match image.channels {
        1 => ColorType::Grayscale,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    });
    encoder.set_depth(BitDepth::Eight);
    encoder.set_compression(Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&image.pixels)?;
    writer.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_image_is_decoded_to_the_same_pixels(
            width in 1u32..9,
            height in 1u32..9,
            channels in prop::sample::select(vec![1u8, 3, 4]),
            seed: u8,
        ) {
            let bytes = width * height * u32::from(channels);
            let pixels: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect();
            let image = ImageSpec { width, height, channels, pixels };
            let encoded = encode(&image).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(encoded)).read_info().unwrap();
            let mut decoded = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut decoded).unwrap();
            prop_assert_eq!((info.width, info.height), (width, height));
            prop_assert_eq!(decoded, image.pixels);
        }
    }
}
