//! Draws `mpu top`: GPUs above, processes below, keys at the bottom. It never panics, whatever the size of the
//! terminal.

use super::app::{App, Mode};
use crate::listing::columns::{Column, printable};
use crate::listing::table;
use crate::processes::{Gpu, Snapshot};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline};
use std::collections::VecDeque;

const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().fg(Color::DarkGray);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
const ALERT: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// The widths of a GPU's name and of each of its two bars. The figures between them take [`FIGURES`].
fn column_widths(width: usize) -> (usize, usize) {
    let name = if width >= 110 { 22 } else { 12 };
    (name, (width.saturating_sub(FIGURES + name) / 2).clamp(4, 20))
}

/// The widest of an index, percent, mebibytes, degrees, watts and MIG devices.
const FIGURES: usize = 61;
/// The width without a terminal.
const ANY_WIDTH: usize = 132;

/// The help: keys and their effects.
pub const KEY_HELP: &[(&str, &str)] = &[
    ("q, Ctrl-C", "end"),
    ("/", "filter by typing: all words have to be in a row; Enter keeps it, Esc drops it"),
    ("s, S, ← →", "sort by the column beside; r turns the order round"),
    ("U M P G C T", "sort by use, memory, PID, GPU, container, time"),
    ("↑ ↓ PgUp PgDn", "move; the row keeps selected while the list changes; Esc lets go"),
    ("p, space", "pause, and go on"),
    ("+ -", "look less often, more often"),
    ("w", "more columns, and fewer"),
    ("?", "this"),
];

pub fn draw(frame: &mut Frame, app: &mut App) {
    let area = frame.area();
    let gpus = app.seen.as_ref().map_or(0, |seen| seen.gpus.len());
    let each = rows_per_gpu(gpus, area.height);
    let above = (gpus as u16).saturating_mul(each).min(area.height / 2);
    let [head, top, bottom, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(above), Constraint::Min(0), Constraint::Length(1)])
            .areas(area);
    frame.render_widget(Paragraph::new(header_line(app)), head);
    if let Some(seen) = &app.seen {
        draw_gpus(frame, top, seen, app, each);
    }
    draw_processes(frame, bottom, app);
    frame.render_widget(Paragraph::new(footer_line(app)), foot);
    if app.mode == Mode::Help {
        draw_help(frame, area);
    }
}

/// One row for the figures, and up to three for the curve if all GPUs fit.
fn rows_per_gpu(gpus: usize, height: u16) -> u16 {
    let room = usize::from(height) * 2 / 5;
    (room / gpus.max(1)).clamp(1, 4) as u16
}

fn header_line(app: &App) -> Line<'static> {
    let mut spans = vec![Span::styled("mpu top", TITLE)];
    if let Some(seen) = &app.seen {
        let (gpus, all, shown) = (seen.gpus.len(), seen.processes.len(), app.rows.len());
        let of = if shown < all { format!(" of {all}") } else { String::new() };
        spans.push(Span::raw(format!("  {gpus} GPU{}, {shown}{of} process{}", plural(gpus, "s"), plural(all, "es"))));
    }
    spans.push(Span::styled(format!("  every {} s", app.interval.as_secs_f64()), DIM));
    if app.paused {
        spans.push(Span::styled("  PAUSED", ALERT));
    }
    if let Some(why) = &app.error {
        spans.push(Span::styled(format!("  {}", printable(why)), ALERT));
    }
    Line::from(spans)
}

fn plural(count: usize, ending: &'static str) -> &'static str {
    if count == 1 { "" } else { ending }
}

fn draw_gpus(frame: &mut Frame, area: Rect, seen: &Snapshot, app: &App, each: u16) {
    for (at, gpu) in seen.gpus.iter().enumerate() {
        let y = area.y.saturating_add((at as u16).saturating_mul(each));
        let left = area.bottom().saturating_sub(y);
        if left == 0 {
            break;
        }
        let row =
            |offset: u16, height: u16| Rect { y: y + offset, height: height.min(left - offset.min(left)), ..area };
        let line = gpu_line(gpu, usize::from(area.width));
        let end = (line.width() as u16).saturating_add(1);
        frame.render_widget(Paragraph::new(line), row(0, 1));
        let empty = VecDeque::new();
        let curve = app.history.get(&gpu.index).unwrap_or(&empty);
        let place = match each {
            1 => Rect { x: area.x.saturating_add(end), width: area.width.saturating_sub(end), ..row(0, 1) },
            _ => Rect { x: area.x.saturating_add(2), width: area.width.saturating_sub(2), ..row(1, each - 1) },
        };
        if gpu.unreadable.is_none() && place.width > 0 && place.height > 0 {
            draw_curve(frame, place, curve, gpu.utilisation.unwrap_or(0));
        }
    }
}

/// Draws a curve with the latest value at the right end.
fn draw_curve(frame: &mut Frame, place: Rect, curve: &VecDeque<u64>, now: u32) {
    let width = usize::from(place.width);
    let mut values: Vec<u64> = vec![0; width.saturating_sub(curve.len())];
    values.extend(curve.iter().skip(curve.len().saturating_sub(width)));
    let style = Style::new().fg(level(f64::from(now) / 100.0));
    frame.render_widget(Sparkline::default().data(values).max(100).style(style), place);
}

fn gpu_line(gpu: &Gpu, width: usize) -> Line<'static> {
    let (name_width, cells) = column_widths(width);
    let name = table::truncate(&printable(gpu.name.as_deref().unwrap_or("GPU")), name_width);
    let mut spans = vec![Span::styled(format!("{:>2} {name:<name_width$}", gpu.index), TITLE)];
    if let Some(why) = &gpu.unreadable {
        spans.push(Span::styled(format!(" not readable: {}", printable(why)), ALERT));
        return Line::from(spans);
    }
    let share = gpu.utilisation.map(|percent| f64::from(percent) / 100.0);
    spans.extend(bar(" GPU ", cells, share, gpu.utilisation.map_or("  -".into(), |percent| format!("{percent:>3}%"))));
    let share = gpu.memory.map(|memory| memory.used as f64 / memory.total.max(1) as f64);
    let text = gpu.memory.map_or("-".into(), |m| format!("{}/{} MiB", m.used >> 20, m.total >> 20));
    spans.extend(bar("  MEM ", cells, share, text));
    let watts = |milliwatts: u32| milliwatts / 1000;
    let mut rest = String::new();
    if let Some(degrees) = gpu.temperature {
        rest += &format!("  {degrees}°C");
    }
    if let Some(power) = gpu.power {
        rest += &format!("  {}", watts(power));
        rest += &gpu.power_limit.map_or(" W".to_string(), |limit| format!("/{} W", watts(limit)));
    }
    if !gpu.mig.is_empty() {
        rest += &format!("  {} MIG", gpu.mig.len());
    }
    spans.push(Span::raw(rest));
    Line::from(spans)
}

/// The GPU's line as plain text.
pub fn gpu_text(gpu: &Gpu) -> String {
    let text: String = gpu_line(gpu, ANY_WIDTH).spans.iter().map(|span| span.content.as_ref()).collect();
    text.trim_end().to_string()
}

fn bar(title: &'static str, cells: usize, share: Option<f64>, text: String) -> Vec<Span<'static>> {
    let share = share.unwrap_or(0.0).clamp(0.0, 1.0);
    let full = (share * cells as f64).round() as usize;
    vec![
        Span::raw(title),
        Span::styled("█".repeat(full), Style::new().fg(level(share))),
        Span::styled("░".repeat(cells - full), DIM),
        Span::raw(format!(" {text}")),
    ]
}

fn level(share: f64) -> Color {
    match share {
        s if s >= 0.9 => Color::Red,
        s if s >= 0.6 => Color::Yellow,
        _ => Color::Green,
    }
}

fn draw_processes(frame: &mut Frame, area: Rect, app: &mut App) {
    if area.height == 0 {
        return;
    }
    app.scroll(usize::from(area.height.saturating_sub(1)));
    let at = app.seen.as_ref().map_or(0, |seen| seen.at);
    let columns = app.columns();
    let arrow = if app.sort.descending { "▼" } else { "▲" };
    let title = |column: &Column| match *column == app.sort.column {
        true => format!("{}{arrow}", column.title()),
        false => column.title().to_string(),
    };
    let mut rows = vec![columns.iter().map(title).collect::<Vec<_>>()];
    rows.extend(app.rows.iter().map(|process| columns.iter().map(|column| column.cell(process, at)).collect()));
    let layouts: Vec<_> = columns.iter().map(|column| column.layout()).collect();
    let lines = table::format_rows(&layouts, &rows, Some(usize::from(area.width)));
    let mut out = Vec::new();
    for (index, line) in lines.into_iter().enumerate() {
        match index.checked_sub(1) {
            None => out.push(Line::styled(line, TITLE)),
            Some(row) if row < app.first => {}
            Some(row) if row >= app.first + app.page => break,
            Some(row) if app.selected == Some(row) => {
                let padded = format!("{line:<width$}", width = usize::from(area.width));
                out.push(Line::styled(padded, SELECTED));
            }
            Some(_) => out.push(Line::raw(line)),
        }
    }
    if app.rows.is_empty() {
        let why = match &app.seen {
            None => "looking …",
            Some(seen) if seen.processes.is_empty() => "no process uses a GPU",
            Some(_) => "no process has all these words",
        };
        out.push(Line::styled(why, DIM));
    }
    frame.render_widget(Paragraph::new(out), area);
}

fn footer_line(app: &App) -> Line<'static> {
    match app.mode {
        Mode::Typing => Line::from(vec![
            Span::styled("filter: ", TITLE),
            Span::raw(printable(&app.filter_text)),
            Span::styled(" ", SELECTED),
            Span::styled("  Enter keeps, Esc drops", DIM),
        ]),
        _ if !app.filter_text.is_empty() => Line::from(vec![
            Span::styled("filter: ", TITLE),
            Span::raw(printable(&app.filter_text)),
            Span::styled("  / changes, Esc drops", DIM),
        ]),
        _ => Line::styled("q end  / filter  s sort  r reverse  p pause  w wide  ? help", DIM),
    }
}

fn draw_help(frame: &mut Frame, area: Rect) {
    let widest = KEY_HELP.iter().map(|(keys, what)| keys.chars().count().max(14) + what.chars().count() + 2).max();
    let width = (widest.unwrap_or(0) as u16 + 4).min(area.width);
    let height = (KEY_HELP.len() as u16 + 2).min(area.height);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let row = |(keys, what): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!(" {keys:<14}"), TITLE), Span::raw(format!(" {what}"))])
    };
    let lines: Vec<Line> = KEY_HELP.iter().map(row).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), place);
}

#[cfg(test)]
mod tests;
