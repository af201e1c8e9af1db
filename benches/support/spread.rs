//! The median, the minimum and the maximum of the figures of all rounds.

use serde::Serialize;

/// The median, the minimum and the maximum of some figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Returns the spread of the figures; all zero if there are none.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        Self { median: at(sorted.len() / 2), min: at(0), max: at(sorted.len().saturating_sub(1)) }
    }

    /// Returns the three figures as text: the median and, in brackets, the minimum and the maximum.
    pub(crate) fn shown(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
    }
}
