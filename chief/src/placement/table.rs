//! The table that `--log-placement` prints: the shard of every slice, then the load of every shard. The
//! table is meant for people; programs should not parse it.

use std::collections::BTreeMap;
use std::fmt::Write;

use pushpull_messages::id::ShardId;
use pushpull_messages::placement::Placement;
use pushpull_messages::variable::VariableSpec;

/// Formats a placement as a readable table. The rows of a slice are shown as `first..end`, where row `end`
/// is not included, or as `all` if the variable is not split. Bytes are those of the values, without the
/// optimizer's slots.
///
/// # Panics
/// Panics if the placement does not belong to these variables; see [`Placement::validate`].
pub fn table(placement: &Placement, variables: &[VariableSpec]) -> String {
    let mut loads: BTreeMap<ShardId, (u64, u64)> =
        placement.shards.iter().map(|&shard| (shard, (0, 0))).collect();
    let mut lines = vec![["variable", "rows", "shape", "bytes", "shard"].map(str::to_owned)];
    for placed in &placement.slices {
        let (slice, variable) = (&placed.slice, &variables[placed.slice.variable.index()]);
        let bytes = slice.elements(variable) as u64 * 4;
        let load = loads.entry(placed.shard).or_default();
        *load = (load.0 + 1, load.1 + bytes);
        let rows = if slice.rows == variable.rows() as u64 {
            "all".to_owned()
        } else {
            format!("{}..{}", slice.row, slice.row + slice.rows)
        };
        let (name, shape) = (variable.name.clone(), variable.shape.to_string());
        lines.push([name, rows, shape, human(bytes), placed.shard.to_string()]);
    }
    let mut text = aligned(&lines, [false, true, false, true, false]);
    text.push('\n');

    let total: u64 = loads.values().map(|(_, bytes)| bytes).sum();
    let mut lines = vec![["shard", "slices", "bytes", "share"].map(str::to_owned)];
    for (shard, (slices, bytes)) in loads {
        // If there are no bytes at all, all shares are shown as 0.
        let share = if total == 0 { 0.0 } else { bytes as f64 * 100.0 / total as f64 };
        lines.push([shard.to_string(), slices.to_string(), human(bytes), format!("{share:.1}%")]);
    }
    let slices = placement.slices.len().to_string();
    lines.push(["total".to_owned(), slices, human(total), String::new()]);
    text.push_str(&aligned(&lines, [false, true, true, true]));
    text
}

/// Aligns lines in columns. Each column is as wide as its widest cell, two spaces separate columns, and
/// `right` marks the right-aligned columns.
fn aligned<const N: usize>(lines: &[[String; N]], right: [bool; N]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for column in 0..N {
            let (cell, width) = (&line[column], widths[column]);
            let gap = if column == 0 { "" } else { "  " };
            let written = if right[column] {
                write!(row, "{gap}{cell:>width$}")
            } else {
                write!(row, "{gap}{cell:<width$}")
            };
            written.expect("a String takes all that is written");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut scaled = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        // The limit is less than 1024, because 1023.96 would be shown as 1024.0.
        if scaled < 1023.95 {
            break;
        }
        scaled /= 1024.0;
        unit = larger;
    }
    format!("{scaled:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_fits() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1_605_632, "1.5 MiB"),
            (3 << 30, "3.0 GiB"),
            (1 << 42, "4.0 TiB"),
            (1 << 52, "4096.0 TiB"),
        ] {
            assert_eq!(human(bytes), shown);
        }
    }
}
