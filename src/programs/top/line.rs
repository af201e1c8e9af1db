//! One line of a frame: pieces of text, each with its tone. Knows how wide text is, and nothing of jobs.

use console::Style;

use crate::programs::shown::clean;

/// What a piece of text is like.
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

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line(Vec<(String, Tone)>);

impl Line {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// With a piece more, whatever is in its text.
    #[must_use]
    pub(super) fn with(mut self, text: impl AsRef<str>, tone: Tone) -> Self {
        self.0.push((clean(text.as_ref()), tone));
        self
    }

    /// At most so wide; what is cut off is shown as an ellipsis.
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

    /// As text for a terminal, with colours or without.
    pub(super) fn print(&self, colours: bool) -> String {
        let piece = |(text, tone): &(String, Tone)| match colours {
            true => tone.style().apply_to(text).to_string(),
            false => text.clone(),
        };
        let printed: String = self.0.iter().map(piece).collect();
        if colours { printed } else { printed.trim_end().to_owned() }
    }
}

/// The first columns of a text, an ellipsis among them where it is longer.
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
