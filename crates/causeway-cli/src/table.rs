//! Tables that are printed row by row, while the work goes on.

use anstyle::{AnsiColor, Effects, Style};

use crate::failure::Failure;
use crate::terminal;

pub(crate) const PASS: Style = AnsiColor::Green.on_default();
pub(crate) const FAIL: Style = AnsiColor::Red.on_default().effects(Effects::BOLD);
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const PLAIN: Style = Style::new();
const HEADER: Style = Style::new().effects(Effects::BOLD);

/// A column: its title, and how wide it is at least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    width: usize,
    right: bool,
}

impl Column {
    /// For text.
    pub const fn left(title: &'static str, width: usize) -> Self {
        Column { title, width, right: false }
    }

    /// For numbers.
    pub const fn right(title: &'static str, width: usize) -> Self {
        Column { title, width, right: true }
    }

    /// Wide enough for its title and `content` characters.
    pub fn fitting(self, content: usize) -> Self {
        Column { width: self.width.max(content), ..self }
    }

    fn pad(&self, text: &str, style: Style) -> String {
        let fill = " ".repeat(self.width.max(self.title.len()).saturating_sub(text.chars().count()));
        // No style around nothing: its codes would keep the spaces before it at the end of a line.
        let style = if text.is_empty() { PLAIN } else { style };
        if self.right {
            format!("{fill}{style}{text}{style:#}")
        } else {
            format!("{style}{text}{style:#}{fill}")
        }
    }
}

/// A cell with a colour.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        Cell { text: text.into(), style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell { text: text.into(), style: PLAIN }
    }
}

/// Columns of fixed width.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
}

impl Table {
    /// Prints the header.
    pub fn begin(columns: Vec<Column>) -> Result<Self, Failure> {
        let titles: Vec<_> = columns.iter().map(|column| Cell::styled(column.title, HEADER)).collect();
        let table = Table { columns };
        terminal::print(&table.format(&titles))?;
        Ok(table)
    }

    /// Prints one row.
    pub fn row(&self, cells: &[Cell]) -> Result<(), Failure> {
        terminal::print(&self.format(cells))
    }

    fn format(&self, cells: &[Cell]) -> String {
        let cells: Vec<_> =
            self.columns.iter().zip(cells).map(|(column, cell)| column.pad(&cell.text, cell.style)).collect();
        cells.join("  ").trim_end().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_line_up_and_long_ones_push_on() {
        let table =
            Table { columns: vec![Column::left("case", 6), Column::right("µs", 5), Column::left("", 0)] };
        assert_eq!(table.format(&["a".into(), "1.5".into(), "ok".into()]), "a         1.5  ok");
        assert_eq!(table.format(&["a longer".into(), "1.5".into(), "".into()]), "a longer    1.5");
        assert_eq!(table.format(&["a".into(), "".into(), Cell::styled("", HEADER)]), "a");
    }
}
