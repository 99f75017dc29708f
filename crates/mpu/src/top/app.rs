//! The state of `mpu top`, and the effect of keys. [`super::view`] draws it.

use crate::listing::columns::{self, Column, Sort};
use crate::listing::filter::Filter;
use crate::processes::{GpuProcess, Mig, Snapshot};
use mpu_core::HostPid;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Readings in a curve: the width of a wide terminal.
const HISTORY: usize = 512;

/// Intervals that `+` and `-` step through.
const INTERVALS: [f64; 8] = [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];

/// What the main loop does after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEffect {
    Stay,
    Quit,
    /// [`App::interval`] or [`App::paused`] changed.
    Pace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Keys,
    Typing,
    /// The help covers the screen; any key closes it.
    Help,
}

/// Identifies a row, so that the selection follows it when the order changes.
type RowKey = (HostPid, u32, Option<Mig>);

pub struct App {
    pub seen: Option<Snapshot>,
    /// Why the last reading failed.
    pub error: Option<String>,
    /// Utilisation of each GPU, the latest last.
    pub history: BTreeMap<u32, VecDeque<u64>>,
    /// The rows to show, in order.
    pub rows: Vec<GpuProcess>,
    pub sort: Sort,
    /// The filter. A row must contain all of its words.
    pub filter_text: String,
    pub mode: Mode,
    /// Whether readings are paused.
    pub paused: bool,
    pub interval: Duration,
    /// Whether more columns are shown.
    pub wide: bool,
    pub first: usize,
    /// The selected row.
    pub selected: Option<usize>,
    requested: Vec<Column>,
    filter: Filter,
    key: Option<RowKey>,
    /// Rows that fit on the screen, as last drawn.
    pub page: usize,
}

impl App {
    pub fn new(columns: Vec<Column>, sort: Sort, filter: Filter, interval: Duration) -> App {
        App {
            seen: None,
            error: None,
            history: BTreeMap::new(),
            rows: Vec::new(),
            sort,
            filter_text: String::new(),
            mode: Mode::Keys,
            paused: false,
            interval,
            wide: false,
            first: 0,
            selected: None,
            requested: columns,
            filter,
            key: None,
            page: 10,
        }
    }

    /// Shows a new reading, or the error of a failed one.
    pub fn update(&mut self, reading: Result<Snapshot, String>) {
        match reading {
            Ok(seen) => {
                for gpu in &seen.gpus {
                    let curve = self.history.entry(gpu.index).or_default();
                    curve.push_back(gpu.utilisation.unwrap_or(0).into());
                    if curve.len() > HISTORY {
                        curve.pop_front();
                    }
                }
                self.error = self.filter.check(&seen.gpus).err().map(|error| error.to_string());
                self.seen = Some(seen);
            }
            Err(why) => self.error = Some(why),
        }
        self.arrange();
    }

    pub fn columns(&self) -> Vec<Column> {
        columns::visible(&self.requested, self.wide, &self.rows)
    }

    pub fn handle_key(&mut self, key: KeyEvent) -> KeyEffect {
        if key.kind == KeyEventKind::Release {
            return KeyEffect::Stay;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return KeyEffect::Quit;
        }
        match self.mode {
            Mode::Typing => self.handle_filter_key(key.code),
            Mode::Help => {
                self.mode = Mode::Keys;
                KeyEffect::Stay
            }
            Mode::Keys => self.handle_command_key(key.code),
        }
    }

    fn handle_filter_key(&mut self, code: KeyCode) -> KeyEffect {
        match code {
            KeyCode::Enter => self.mode = Mode::Keys,
            KeyCode::Esc => {
                self.filter_text.clear();
                self.mode = Mode::Keys;
            }
            KeyCode::Backspace => {
                self.filter_text.pop();
            }
            KeyCode::Char(c) if self.filter_text.len() < 128 => self.filter_text.push(c),
            KeyCode::Up | KeyCode::Down | KeyCode::PageUp | KeyCode::PageDown => return self.handle_command_key(code),
            _ => {}
        }
        self.arrange();
        KeyEffect::Stay
    }

    fn handle_command_key(&mut self, code: KeyCode) -> KeyEffect {
        match code {
            KeyCode::Char('q') => return KeyEffect::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Typing,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return KeyEffect::Pace;
            }
            KeyCode::Char(key @ ('+' | '=' | '-')) => {
                self.interval = next_interval(self.interval, key != '-');
                return KeyEffect::Pace;
            }
            KeyCode::Char('w') => self.wide = !self.wide,
            KeyCode::Char('r') => self.sort.descending = !self.sort.descending,
            KeyCode::Char('s') | KeyCode::Right | KeyCode::Char('>') => self.sort_by_neighbour(1),
            KeyCode::Char('S') | KeyCode::Left | KeyCode::Char('<') => self.sort_by_neighbour(-1),
            KeyCode::Char(letter @ ('U' | 'M' | 'P' | 'G' | 'C' | 'T')) => self.sort_by(letter),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-(self.page as isize)),
            KeyCode::PageDown => self.move_by(self.page as isize),
            KeyCode::Home => self.move_by(isize::MIN),
            KeyCode::End => self.move_by(isize::MAX),
            KeyCode::Esc => {
                self.filter_text.clear();
                (self.selected, self.key) = (None, None);
            }
            _ => {}
        }
        self.arrange();
        KeyEffect::Stay
    }

    fn sort_by(&mut self, letter: char) {
        let (column, descending) = match letter {
            'U' => (Column::Util, true),
            'M' => (Column::Memory, true),
            'P' => (Column::Pid, false),
            'G' => (Column::Gpu, false),
            'C' => (Column::Container, false),
            _ => (Column::Age, true),
        };
        let again = self.sort.column == column;
        self.sort = Sort { column, descending: if again { !self.sort.descending } else { descending } };
    }

    fn sort_by_neighbour(&mut self, by: isize) {
        let columns = self.columns();
        let at = columns.iter().position(|column| *column == self.sort.column).unwrap_or(0) as isize;
        let next = (at + by).rem_euclid(columns.len().max(1) as isize) as usize;
        if let Some(column) = columns.get(next) {
            self.sort = Sort { column: *column, descending: column.layout().0 == columns::Align::Right };
        }
    }

    fn move_by(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        let at = match self.selected {
            None if by > 0 && by != isize::MAX => 0,
            at => at.unwrap_or(0).saturating_add_signed(by),
        };
        self.selected = (!self.rows.is_empty()).then_some(at.min(last));
        self.key = self.selected.and_then(|at| self.rows.get(at)).map(key_of);
    }

    /// Filters and sorts the rows, and restores the selection.
    fn arrange(&mut self) {
        let Some(seen) = &self.seen else { return };
        let words: Vec<String> = self.filter_text.split_whitespace().map(str::to_lowercase).collect();
        let matches = |process: &&GpuProcess| {
            self.filter.matches(process, &seen.gpus) && (words.is_empty() || has_all_words(process, &words, seen.at))
        };
        let mut rows: Vec<GpuProcess> = seen.processes.iter().filter(matches).cloned().collect();
        columns::sort(&mut rows, &[self.sort]);
        self.rows = rows;
        let again = self.key.and_then(|key| self.rows.iter().position(|row| key_of(row) == key));
        self.selected = match (self.selected, again) {
            (None, _) | (_, None) if self.rows.is_empty() => None,
            (_, Some(at)) => Some(at),
            (at, None) => at.map(|at| at.min(self.rows.len() - 1)),
        };
        self.key = self.selected.and_then(|at| self.rows.get(at)).map(key_of);
    }

    /// Moves the window to the selected row.
    pub fn scroll(&mut self, page: usize) {
        self.page = page.max(1);
        let last = self.rows.len().saturating_sub(self.page);
        self.first = self.first.min(last);
        if let Some(at) = self.selected {
            self.first = self.first.clamp((at + 1).saturating_sub(self.page), at);
        }
    }
}

fn key_of(row: &GpuProcess) -> RowKey {
    (row.pid, row.gpu, row.mig)
}

/// Whether every word is in one of the cells.
fn has_all_words(process: &GpuProcess, words: &[String], at: u64) -> bool {
    use clap::ValueEnum;
    let cells: Vec<String> = Column::value_variants().iter().map(|c| c.cell(process, at).to_lowercase()).collect();
    words.iter().all(|word| cells.iter().any(|cell| cell.contains(word)))
}

/// The next interval that is longer, or shorter.
fn next_interval(interval: Duration, longer: bool) -> Duration {
    let now = interval.as_secs_f64();
    let next = match longer {
        true => INTERVALS.iter().find(|step| **step > now + 0.01),
        false => INTERVALS.iter().rev().find(|step| **step < now - 0.01),
    };
    next.map_or(interval, |seconds| Duration::from_secs_f64(*seconds))
}

#[cfg(test)]
pub(crate) mod tests;
