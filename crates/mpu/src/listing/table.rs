//! Formats cells as lines, within a terminal's width if there is one.

use super::columns::{Align, Layout};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const COLUMN_GAP: usize = 2;

/// The width of the terminal that this program writes to.
pub fn terminal_width() -> Option<usize> {
    ratatui::crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns)).filter(|width| *width > 0)
}

/// Formats rows as lines. If they are wider than `width`, the columns that may be cut shrink, the widest first. Other
/// columns may overflow.
pub fn format_rows(columns: &[Layout], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let widths = widths(columns, rows, width);
    rows.iter().map(|row| line(columns, row, &widths)).collect()
}

/// The width of each column.
pub fn widths(columns: &[Layout], rows: &[Vec<String>], width: Option<usize>) -> Vec<usize> {
    let widest = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    let Some(width) = width else { return widths };
    let gaps = COLUMN_GAP * columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let room = |at: &usize| widths[*at].saturating_sub(columns[*at].1.unwrap_or(usize::MAX));
        match (0..columns.len()).filter(|at| room(at) > 0).max_by_key(|at| widths[*at]) {
            Some(at) => widths[at] -= 1,
            None => break,
        }
    }
    widths
}

fn line(columns: &[Layout], row: &[String], widths: &[usize]) -> String {
    let cells = columns.iter().zip(row).zip(widths).map(|((column, cell), width)| {
        let cell = truncate(cell, *width);
        let pad = " ".repeat(width.saturating_sub(cell.width()));
        match column.0 {
            Align::Left => cell + &pad,
            Align::Right => pad + &cell,
        }
    });
    cells.collect::<Vec<_>>().join(&" ".repeat(COLUMN_GAP)).trim_end().to_string()
}

/// Cuts a text to a width; a cut text ends in an ellipsis.
pub fn truncate(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_string();
    }
    let mut rest = width.saturating_sub(1);
    let mut out = String::new();
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if wide > rest {
            break;
        }
        rest -= wide;
        out.push(c);
    }
    if width > 0 {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::columns::Column;
    use super::*;

    #[test]
    fn truncated_text_fits_width() {
        for text in ["", "abc", "abcdef", "日本語テキスト", "e\u{301}e\u{301}e\u{301}e\u{301}", "👩‍👩‍👧 family"]
        {
            for width in 0..12 {
                assert!(truncate(text, width).width() <= width, "{text} in {width}: {}", truncate(text, width));
            }
        }
        assert_eq!((truncate("abcdef", 4).as_str(), truncate("abcd", 4).as_str()), ("abc…", "abcd"));
    }

    #[test]
    fn widest_text_column_shrinks_first() {
        let columns = [Column::Pid, Column::User, Column::Command].map(Column::layout);
        let row = ["4194303".to_string(), "administrator".to_string(), "x".repeat(50)].to_vec();
        let rows = [row];
        assert_eq!(widths(&columns, &rows, None), [7, 13, 50]);
        assert_eq!(widths(&columns, &rows, Some(60)), [7, 13, 36]);
        assert_eq!(widths(&columns, &rows, Some(35)), [7, 12, 12]);
        assert_eq!(widths(&columns, &rows, Some(5)), [7, 6, 10]);
    }
}
