//! A table that shows as many columns and rows as fit. If not all fit, it shows the first columns, and
//! prefers rows with problems. This module must not depend on jobs.

use super::line::{Line, Tone, cut};
use super::number::whole;

/// The number of spaces between two columns.
const GAP: usize = 2;
/// The maximum width of a cell. Names may be of any length.
const CELL_MAX: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) align: Align,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: cut(&text.into(), CELL_MAX), tone }
    }

    pub(super) fn plain(text: String) -> Self {
        Self::new(text, Tone::Plain)
    }

    pub(super) fn number(value: u64) -> Self {
        Self::new(whole(value), if value == 0 { Tone::Quiet } else { Tone::Plain })
    }

    /// Makes a cell for a count that should be 0; any other value is shown as a warning.
    pub(super) fn worry(value: u64) -> Self {
        Self::new(whole(value), if value == 0 { Tone::Quiet } else { Tone::Warning })
    }

    pub(super) fn or_dash(text: Option<String>) -> Self {
        text.map_or_else(|| Self::new("-", Tone::Quiet), Self::plain)
    }
}

/// The columns of a table, and its rows, which have a cell for each column.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<Column>,
    noun: &'static str,
    rows: Vec<(bool, Vec<Cell>)>,
}

impl Table {
    pub(super) fn new(columns: &[Column], noun: &'static str) -> Self {
        Self { columns: columns.to_vec(), noun, rows: Vec::new() }
    }

    /// Appends a row. If not all rows fit, those for which `troubled` is true are chosen first.
    pub(super) fn push(&mut self, troubled: bool, cells: Vec<Cell>) {
        self.rows.push((troubled, cells));
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the heading and at most `rows` more lines. If not all rows of the table fit, the last line
    /// says how many are left out.
    pub(super) fn lines(&self, columns: usize, rows: usize) -> Vec<Line> {
        let all = self.rows.len() <= rows;
        let shown = if all { self.rows.len() } else { rows.saturating_sub(1) };
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        if !all {
            order.sort_by_key(|&row| !self.rows[row].0);
            order.truncate(shown);
            order.sort_unstable();
        }
        let widths = self.widths(&order, columns);
        let mut lines = vec![self.head(&widths)];
        lines.extend(order.iter().map(|&row| self.row(&self.rows[row].1, &widths)));
        if !all && rows > 0 {
            let more = self.rows.len() - shown;
            lines.push(Line::new().with(format!("and {more} more {}", self.noun), Tone::Quiet));
        }
        lines
    }

    /// Returns the widths of the columns that fit; `order` lists the rows that are shown.
    fn widths(&self, order: &[usize], columns: usize) -> Vec<usize> {
        let mut widths = Vec::new();
        let mut taken = 0;
        for (at, column) in self.columns.iter().enumerate() {
            let cells = order.iter().map(|&row| console::measure_text_width(&self.rows[row].1[at].text));
            let width = cells.chain([column.name.len()]).max().unwrap_or(0);
            let with_gap = if at == 0 { width } else { width + GAP };
            // The first column is always shown, even if it must be cut off.
            if at > 0 && taken + with_gap > columns {
                break;
            }
            taken += with_gap;
            widths.push(width);
        }
        widths
    }

    fn head(&self, widths: &[usize]) -> Line {
        let cells = self.columns.iter().map(|column| (column.name, Tone::Quiet));
        self.laid_out(cells, widths)
    }

    fn row(&self, cells: &[Cell], widths: &[usize]) -> Line {
        self.laid_out(cells.iter().map(|cell| (cell.text.as_str(), cell.tone)), widths)
    }

    fn laid_out<'a>(&self, cells: impl Iterator<Item = (&'a str, Tone)>, widths: &[usize]) -> Line {
        let mut line = Line::new();
        for (at, ((text, tone), &width)) in cells.zip(widths).enumerate() {
            let gap = " ".repeat(if at == 0 { 0 } else { GAP });
            let pad = " ".repeat(width.saturating_sub(console::measure_text_width(text)));
            line = match self.columns[at].align {
                Align::Left => line.with(gap, Tone::Plain).with(text, tone).with(pad, Tone::Plain),
                Align::Right => line.with(gap + &pad, Tone::Plain).with(text, tone),
            };
        }
        line
    }
}
