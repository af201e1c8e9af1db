//! The source of kernels, which a device compiles when it loads them.

use crate::multiplication::Multiplication;

/// The number of threads in a block of our kernels.
pub(crate) const LANES: u32 = 256;

/// Kernels in CUDA C++.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: String,
    text: String,
    stand_ins: Vec<StandIn>,
}

/// A kernel that stands in for a library. Only devices without one compile it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StandIn {
    pub kernel: String,
    pub text: String,
    /// What the library computes.
    pub multiplication: Multiplication,
}

/// The text before the name of each kernel.
pub(crate) const KERNEL: &str = "extern \"C\" __global__ void ";

/// Text that kernels may need in front of them, or that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Library {
    /// Only what stands before every source.
    Prelude,
    /// Functions of one number.
    Functions,
    /// Kernels of rows.
    Rows,
    /// Reductions of the columns of a matrix.
    Columns,
    /// Kernels of normalisations.
    Norm,
    /// Functions of the windows of images.
    Pool,
    /// Means whose items are added in parts.
    Means,
    /// Kernels of losses.
    Losses,
    /// Kernels of metrics.
    Metrics,
    /// Kernels of tables whose rows have ids.
    Embeddings,
    /// Random numbers and dropout.
    Dropout,
    /// Products of matrices, and convolutions.
    Product,
    /// The products of libraries.
    Multiply,
    /// Attention.
    Attention,
}

impl Library {
    /// Returns the text.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Prelude => "",
            Self::Functions => include_str!("functions.cu"),
            Self::Rows => include_str!("rows.cu"),
            Self::Columns => include_str!("columns.cu"),
            Self::Norm => include_str!("norm.cu"),
            Self::Pool => include_str!("pool.cu"),
            Self::Means => include_str!("mean.cu"),
            Self::Losses => include_str!("loss.cu"),
            Self::Metrics => include_str!("metric.cu"),
            Self::Embeddings => include_str!("embedding.cu"),
            Self::Dropout => include_str!("dropout.cu"),
            Self::Product => include_str!("product.cu"),
            Self::Multiply => include_str!("multiply.cu"),
            Self::Attention => include_str!("attention.cu"),
        }
    }

    /// Returns the libraries whose functions this one uses. They stand before it.
    pub(crate) const fn needs(self) -> &'static [Self] {
        match self {
            Self::Norm => &[Self::Columns],
            Self::Losses => &[Self::Functions, Self::Rows, Self::Means],
            Self::Metrics => &[Self::Means],
            _ => &[],
        }
    }
}

impl Source {
    /// Returns a source with this name and this text behind the prelude.
    pub(crate) fn new(name: impl Into<String>, text: &str) -> Self {
        let prelude = [include_str!("prelude.cu"), include_str!("block.cu")].concat();
        Self {
            name: name.into(),
            text: format!("#define LANES {LANES}\n{prelude}\n{text}"),
            stand_ins: Vec::new(),
        }
    }

    /// Returns the source with these kernels that stand in for a library.
    pub(crate) fn with_stand_ins(self, stand_ins: Vec<StandIn>) -> Self {
        Self { stand_ins, ..self }
    }

    /// Returns the kernels that stand in for a library.
    pub(crate) fn stand_ins(&self) -> &[StandIn] {
        &self.stand_ins
    }

    /// Returns the text with the kernels that stand in for a library.
    pub(crate) fn whole_text(&self) -> String {
        let stand_ins = self.stand_ins.iter().map(|own| own.text.as_str());
        std::iter::once(&*self.text).chain(stand_ins).collect()
    }

    /// Returns the kernels of all optimizers.
    pub fn optimizer() -> Self {
        Self::new("optimizer", include_str!("optimizer.cu"))
    }

    /// Returns the name of the source.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the text of the source.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the names of the kernels in the source.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        let name = |text: &'_ str| text.split('(').next().map(str::len);
        self.text.split(KERNEL).skip(1).filter_map(move |text| Some(&text[..name(text)?]))
    }

    /// Returns the source after `from`, which it must contain once, was replaced with `to`. For tests that
    /// must find a wrong kernel.
    ///
    /// # Panics
    /// If the source does not contain `from` exactly once.
    #[must_use]
    pub fn with(&self, from: &str, to: &str) -> Self {
        assert_eq!(self.text.matches(from).count(), 1, "{} has '{from}' once", self.name);
        Self {
            name: format!("{}-changed", self.name),
            text: self.text.replacen(from, to, 1),
            stand_ins: self.stand_ins.clone(),
        }
    }
}
