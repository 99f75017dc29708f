//! Keys and readings, without a terminal.

use super::*;
use crate::listing::tests::seen;

pub(crate) fn app() -> App {
    let sort = Sort { column: Column::Memory, descending: true };
    let mut app = App::new(vec![], sort, Filter::default(), Duration::from_secs(1));
    app.update(Ok(seen()));
    app
}

pub(crate) fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        app.handle_key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

fn pids(app: &App) -> Vec<u32> {
    app.rows.iter().map(|row| row.pid.get()).collect()
}

#[test]
fn keys_sort() {
    let mut app = app();
    assert_eq!(pids(&app), [20_001, 100, 20_002]);
    press(&mut app, "r");
    assert_eq!(pids(&app), [20_002, 100, 20_001]);
    press(&mut app, "P");
    assert_eq!(pids(&app), [100, 20_001, 20_002]);
    press(&mut app, "P");
    assert_eq!(pids(&app), [20_002, 20_001, 100], "the same key again turns it round");
    let before = app.sort.column;
    press(&mut app, "s");
    assert_ne!(app.sort.column, before);
    press(&mut app, "S");
    assert_eq!(app.sort.column, before);
}

#[test]
fn typing_filters_at_once_and_escape_drops_it() {
    let mut app = app();
    press(&mut app, "/train py");
    assert_eq!(pids(&app), [20_001, 100, 20_002]);
    press(&mut app, "\x08\x08\x08\x08\x08\x08\x08\x08Docker");
    assert_eq!(pids(&app), [20_001]);
    press(&mut app, "\n");
    assert_eq!((app.mode, app.filter_text.as_str()), (Mode::Keys, "Docker"));
    press(&mut app, "\x1b");
    assert_eq!(pids(&app).len(), 3);
    press(&mut app, "/q");
    assert_eq!(app.filter_text, "q", "in the filter a q is a q");
}

#[test]
fn keys_end_and_pause_and_change_pace() {
    let mut app = app();
    let key = |app: &mut App, c, modifiers| app.handle_key(KeyEvent::new(KeyCode::Char(c), modifiers));
    assert_eq!(key(&mut app, 'p', KeyModifiers::NONE), KeyEffect::Pace);
    assert!(app.paused);
    assert_eq!(key(&mut app, ' ', KeyModifiers::NONE), KeyEffect::Pace);
    assert!(!app.paused);
    for (c, seconds) in [('+', 2.0), ('+', 5.0), ('-', 2.0), ('-', 1.0), ('-', 0.5), ('-', 0.2), ('-', 0.2)] {
        assert_eq!(key(&mut app, c, KeyModifiers::NONE), KeyEffect::Pace);
        assert_eq!(app.interval.as_secs_f64(), seconds);
    }
    assert_eq!(key(&mut app, 'q', KeyModifiers::NONE), KeyEffect::Quit);
    press(&mut app, "/");
    assert_eq!(key(&mut app, 'c', KeyModifiers::CONTROL), KeyEffect::Quit);
}

#[test]
fn selection_follows_process() {
    let mut app = app();
    press(&mut app, "jj");
    assert_eq!(app.selected, Some(1));
    press(&mut app, "P");
    assert_eq!(pids(&app)[app.selected.unwrap()], 100);
    let mut fewer = seen();
    fewer.processes.remove(0);
    app.update(Ok(fewer));
    assert!(app.selected.is_some_and(|at| at < 2), "its process ended: another near it");
    app.update(Ok(Snapshot { processes: vec![], ..seen() }));
    assert_eq!(app.selected, None);
    press(&mut app, "jkjk");
    assert_eq!(app.selected, None);
}

#[test]
fn failed_reading_keeps_rows_and_shows_error() {
    let mut app = app();
    app.update(Err("the driver is gone".to_string()));
    assert_eq!((pids(&app).len(), app.error.as_deref()), (3, Some("the driver is gone")));
    app.update(Ok(seen()));
    assert_eq!(app.error, None);
}

#[test]
fn history_has_end() {
    let mut app = app();
    for _ in 0..2000 {
        app.update(Ok(seen()));
    }
    assert!(app.history.values().all(|curve| curve.len() == HISTORY));
}

#[test]
fn window_follows_selection() {
    let mut app = app();
    app.scroll(2);
    assert_eq!(app.first, 0);
    press(&mut app, "jjj");
    app.scroll(2);
    assert_eq!((app.selected, app.first), (Some(2), 1));
    press(&mut app, "kk");
    app.scroll(2);
    assert_eq!((app.selected, app.first), (Some(0), 0));
    app.scroll(0);
}
