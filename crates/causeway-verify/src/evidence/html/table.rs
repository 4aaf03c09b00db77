//! Tables: captions, scopes, sort values and filters. The script finds what is sortable by its markup.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::escape;

/// A column.
pub(super) struct Column {
    title: &'static str,
    number: bool,
    /// True if a filter lists its values.
    filter: bool,
}

impl Column {
    pub fn text(title: &'static str) -> Self {
        Column { title, number: false, filter: false }
    }

    pub fn number(title: &'static str) -> Self {
        Column { title, number: true, filter: false }
    }

    /// Of few different values, which a filter offers.
    pub fn choice(title: &'static str) -> Self {
        Column { title, number: false, filter: true }
    }
}

/// A cell: its HTML, and what it is sorted and filtered by where that is not its text.
pub(super) struct Cell {
    html: String,
    value: Option<f64>,
    choice: Option<String>,
}

impl Cell {
    pub fn text(text: &str) -> Self {
        Self::html(&escape(text))
    }

    /// One of the values of a [`Column::choice`].
    pub fn choice(text: &str) -> Self {
        Cell { choice: Some(text.to_string()), ..Self::text(text) }
    }

    pub fn number(value: f64, text: &str) -> Self {
        Cell { value: Some(value), ..Self::text(text) }
    }

    pub fn digest(text: &str) -> Self {
        Self::html(&format!("<code class=\"digest\">{}</code>", escape(text)))
    }

    /// HTML whose parts are escaped already.
    pub fn html(html: &str) -> Self {
        Cell { html: html.to_string(), value: None, choice: None }
    }

    /// HTML that is sorted as a number.
    pub fn html_number(value: f64, html: &str) -> Self {
        Cell { value: Some(value), ..Self::html(html) }
    }

    /// A verdict with its colour.
    pub fn verdict(good: bool, text: &str) -> Self {
        let (class, mark) = if good { ("good", "✓") } else { ("bad", "✗") };
        Cell {
            choice: Some(text.to_string()),
            ..Self::html(&format!("<span class=\"{class}\">{mark} {}</span>", escape(text)))
        }
    }
}

/// A table; the first column names the row.
pub(super) struct Table {
    caption: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// Tables of fewer rows need no filter.
const FILTERED_FROM: usize = 8;

impl Table {
    pub fn new(caption: &str, columns: Vec<Column>) -> Self {
        Table { caption: caption.to_string(), columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table as HTML; `number` tells it from others on the page.
    pub fn render(&self, number: usize) -> String {
        let mut html = String::new();
        let filtered = self.rows.len() >= FILTERED_FROM;
        if filtered {
            self.controls(&mut html, number);
        }
        let caption = escape(&self.caption);
        let controls = if filtered { format!(" data-controls=\"controls-{number}\"") } else { String::new() };
        // Writing to a `String` cannot fail.
        let _ = write!(
            html,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table class=\"data\"{controls}>\
             <caption><span>{caption}</span></caption>\n<thead><tr>"
        );
        for column in &self.columns {
            let class = if column.number { " class=\"num\"" } else { "" };
            let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escape(column.title));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            self.render_row(&mut html, row);
        }
        html.push_str("</tbody></table></div>");
        html
    }

    fn render_row(&self, html: &mut String, row: &[Cell]) {
        html.push_str("<tr>");
        for (i, (cell, column)) in row.iter().zip(&self.columns).enumerate() {
            let (tag, scope) = if i == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
            let class = if column.number { " class=\"num\"" } else { "" };
            let value = cell.value.map_or(String::new(), |value| format!(" data-v=\"{:e}\"", finite(value)));
            let choice = cell.choice.as_ref().filter(|_| column.filter);
            let choice = choice.map_or(String::new(), |choice| format!(" data-k=\"{}\"", escape(choice)));
            let _ = write!(html, "<{tag}{scope}{class}{value}{choice}>{}</{tag}>", cell.html);
        }
        html.push_str("</tr>\n");
    }

    /// A field for words, and a list for each column of few values. Hidden until the script is there.
    fn controls(&self, html: &mut String, number: usize) {
        let _ = write!(
            html,
            "<div class=\"controls\" id=\"controls-{number}\" hidden><label>Rows with these words\
             <input type=\"search\" autocomplete=\"off\"></label>"
        );
        for (at, column) in self.columns.iter().enumerate().filter(|(_, column)| column.filter) {
            let values: BTreeSet<_> = self.rows.iter().filter_map(|row| row[at].choice.as_deref()).collect();
            if values.len() < 2 {
                continue;
            }
            let _ = write!(
                html,
                "<label>{}<select data-column=\"{at}\"><option value=\"\">all</option>",
                escape(column.title)
            );
            for value in values {
                let value = escape(value);
                let _ = write!(html, "<option value=\"{value}\">{value}</option>");
            }
            html.push_str("</select></label>");
        }
        html.push_str("<output aria-live=\"polite\"></output></div>\n");
    }
}

/// A number that JavaScript reads: what is infinite or no number is larger than everything.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::MAX }
}
