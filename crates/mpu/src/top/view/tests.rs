//! Draws into a terminal in memory.

use super::*;
use crate::listing::filter::Filter;
use crate::listing::tests::seen;
use crate::top::app::tests::{app, press};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::Duration;

fn picture(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, app)).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_string();
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn screen_shows_gpus_above_processes() {
    let expected = "\
mpu top  2 GPUs, 3 processes  every 1 s
 0 NVIDIA H200            GPU ████████░░░░░░░░░░░░  40%  MEM █░░░░░░░░░░░░░░░░░░░ 9000/143771 MiB  41°C  212/700 W
                                                                                                                           ▃
 1 NVIDIA H200            GPU ████████░░░░░░░░░░░░  40%  MEM █░░░░░░░░░░░░░░░░░░░ 9000/143771 MiB  41°C  212/700 W  1 MIG
                                                                                                                           ▃
GPU    PID  CPID  USER  CONTAINER     NAMESPACE  POD      TYPE  MEMORY▼  GPU%  COMMAND
  0  20001     5  1000  train         -          -        C     8000MiB     7  python3 train.py --gpu 0
  0    100     -  root  -             -          -        C      500MiB     7  python3 train.py --gpu 0
  1  20002    12  1000  09f8e7d6c5b4  web        serve-0  C      300MiB     7  python3 train.py --gpu 1

q end  / filter  s sort  r reverse  p pause  w wide  ? help";
    assert_eq!(picture(&mut app(), 124, 11), expected);
}

#[test]
fn eighty_columns_are_enough_for_gpu() {
    let picture = picture(&mut app(), 80, 24);
    for line in picture.lines().filter(|line| line.contains("NVIDIA H200")) {
        assert!(line.contains("41°C  212/700 W"), "{picture}");
    }
}

#[test]
fn every_size_is_drawn_and_never_panics() {
    let mut app = app();
    for mode in [Mode::Keys, Mode::Typing, Mode::Help] {
        app.mode = mode;
        for width in [1, 2, 5, 20, 40, 80, 200] {
            for height in [1, 2, 3, 5, 10, 24, 60] {
                picture(&mut app, width, height);
            }
        }
    }
    let mut nothing = App::new(vec![], app.sort, Filter::default(), Duration::from_secs(1));
    assert!(picture(&mut nothing, 80, 10).contains("looking …"));
}

#[test]
fn many_gpus_leave_room_for_processes() {
    let mut many = seen();
    let gpu = many.gpus[0].clone();
    many.gpus = (0..16).map(|index| Gpu { index, ..gpu.clone() }).collect();
    let mut app = app();
    app.update(Ok(many));
    let picture = picture(&mut app, 100, 24);
    assert!(picture.contains("python3 train.py") && picture.contains(" 7 NVIDIA H200"), "{picture}");
}

#[test]
fn head_and_foot_show_current_mode() {
    let mut app = app();
    press(&mut app, "p");
    assert!(picture(&mut app, 100, 12).contains("PAUSED"));
    press(&mut app, "/");
    press(&mut app, "t");
    assert!(picture(&mut app, 100, 12).contains("filter: t"), "typing");
    press(&mut app, "\n");
    press(&mut app, "?");
    let help = picture(&mut app, 110, 20);
    for (keys, what) in KEY_HELP {
        assert!(help.contains(keys) && help.contains(what), "{help}");
    }
    press(&mut app, "x");
    assert_eq!(app.mode, Mode::Keys);
    app.update(Err("the driver is\x1b[2J gone".to_string()));
    assert!(picture(&mut app, 100, 12).contains("the driver is\u{fffd}[2J gone"));
}

#[test]
fn unreadable_gpu_shows_its_error() {
    let mut app = app();
    let mut lost = seen();
    lost.gpus[1].unreadable = Some("device fell off the bus".to_string());
    app.update(Ok(lost));
    assert!(picture(&mut app, 100, 12).contains("not readable: device fell off the bus"));
}

#[test]
fn selected_row_is_in_picture() {
    let mut app = app();
    for _ in 0..3 {
        press(&mut app, "j");
    }
    let picture = picture(&mut app, 100, 7);
    assert!(picture.contains("20002"), "{picture}");
}
