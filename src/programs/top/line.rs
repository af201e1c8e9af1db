//! One line of a frame: pieces of text, each with its tone. Also measures the width of text. This module
//! must not depend on jobs.

use console::Style;

use crate::programs::format::clean;

/// The meaning of a piece of text, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Quiet,
    Strong,
    Good,
    Bad,
    Warning,
    Done,
}

impl Tone {
    fn style(self) -> Style {
        let style = Style::new().force_styling(true);
        match self {
            Self::Plain => style,
            Self::Quiet => style.dim(),
            Self::Strong => style.bold(),
            Self::Good => style.green(),
            Self::Bad => style.red().bold(),
            Self::Warning => style.yellow().bold(),
            Self::Done => style.blue(),
        }
    }
}

/// A line, as pieces of text and their tones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line(Vec<(String, Tone)>);

impl Line {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Appends a piece of text, without its control characters.
    #[must_use]
    pub(super) fn with(mut self, text: impl AsRef<str>, tone: Tone) -> Self {
        self.0.push((clean(text.as_ref()), tone));
        self
    }

    /// Cuts the line to `columns` columns; an ellipsis replaces the rest.
    #[must_use]
    pub(super) fn cut(mut self, columns: usize) -> Self {
        let mut room = columns;
        for at in 0..self.0.len() {
            let width = console::measure_text_width(&self.0[at].0);
            if width > room {
                self.0[at].0 = cut(&self.0[at].0, room);
                self.0.truncate(at + 1);
                break;
            }
            room -= width;
        }
        self
    }

    /// Returns the line as text for a terminal, with colours or without.
    pub(super) fn print(&self, colours: bool) -> String {
        let piece = |(text, tone): &(String, Tone)| match colours {
            true => tone.style().apply_to(text).to_string(),
            false => text.clone(),
        };
        let printed: String = self.0.iter().map(piece).collect();
        if colours { printed } else { printed.trim_end().to_owned() }
    }
}

/// Returns the text if it fits into `columns` columns. Otherwise returns the beginning of the text and an
/// ellipsis, which together fit into `columns` columns.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if console::measure_text_width(text) <= columns {
        return text.to_owned();
    }
    let (mut kept, mut width) = (String::new(), 0);
    for c in text.chars() {
        let more = console::measure_text_width(c.encode_utf8(&mut [0; 4]));
        if width + more + 1 > columns {
            break;
        }
        width += more;
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}
