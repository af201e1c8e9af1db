//! Shape inference for operations on images.

use super::super::error::GraphError;
use super::super::geometry::{Stride, Window};
use super::Site;
use crate::tensor::TensorSpec;

impl Site<'_> {
    fn image(&self) -> Option<[usize; 4]> {
        self.floats(0)?.try_into().ok()
    }

    pub(super) fn conv2d(&self, geometry: &Stride) -> Result<TensorSpec, GraphError> {
        match (self.image(), self.floats(1)) {
            (Some([batch, height, width, channels]), Some(&[kh, kw, cin, cout])) if channels == cin => {
                let output = geometry.output([height, width], [kh, kw]);
                let [height, width] = output.ok_or_else(|| {
                    self.misfit(format!(
                        "room for the kernel in the image, and strides of at least 1 ({geometry:?})"
                    ))
                })?;
                Ok(TensorSpec::f32([batch, height, width, cout]))
            }
            _ => Err(self.misfit("f32 images [batch, h, w, cin] and kernel [kh, kw, cin, cout]")),
        }
    }

    pub(super) fn pool2d(&self, geometry: &Window) -> Result<TensorSpec, GraphError> {
        let [batch, height, width, channels] =
            self.image().ok_or_else(|| self.misfit("f32 images [batch, h, w, c]"))?;
        let [height, width] = geometry.output([height, width]).ok_or_else(|| {
            self.misfit(format!(
                "room for the window in the image, at most 256 pixels in a window, and strides of at least 1 \
                     ({geometry:?})"
            ))
        })?;
        Ok(TensorSpec::f32([batch, height, width, channels]))
    }

    pub(super) fn global_average_pool(&self) -> Result<TensorSpec, GraphError> {
        let [batch, _, _, channels] =
            self.image().ok_or_else(|| self.misfit("f32 images [batch, h, w, c]"))?;
        Ok(TensorSpec::f32([batch, channels]))
    }
}
