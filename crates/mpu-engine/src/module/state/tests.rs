//! Parses states of each format, and invalid ones.

use super::*;
use mpu_host::host::fake::FakeHost;

fn parse(text: &str) -> Result<State, &'static str> {
    super::parse(Instance::Mpu, text).map(|state| state.with_holders(&FakeHost::in_order().host()))
}

#[test]
fn armed_module_is_read() {
    let state = parse(ARMED).expect("a state");
    assert_eq!(state.phase, Phase::Armed);
    assert_eq!(
        (state.version.as_str(), state.abi.as_str(), state.driver.as_deref()),
        ("0.1.0", "1", Some("550.163.01"))
    );
    assert_eq!((state.hooks.len(), state.inside), (4, 0));
}

#[test]
fn format_2_state_has_argument_and_holders() {
    let state = parse(HELD).expect("a state");
    assert_eq!((&state.phase, state.argument), (&Phase::Armed, Some(Argument { source: "claimed", errno: Some(2) })));
    assert_eq!((state.entered, state.translated, state.inside, state.orphans), (Some(9), Some(3), 2, 1));
    let seen =
        |holder: &HolderInfo| (holder.pid.get(), holder.thread.get(), holder.control.clone(), holder.milliseconds);
    let control = Some("0x00000283".to_string());
    assert_eq!(state.holders.iter().map(seen).collect::<Vec<_>>(), [(4242, 4243, control, 12345), (70, 70, None, 160)]);
    let other = parse("version=1\nstate=armed\nholder=1 1 - 5\nholder=odd\nholder=0 0 - 5\n").expect("a state");
    assert_eq!(other.holders.iter().map(seen).collect::<Vec<_>>(), [(1, 1, None, 5)]);
    assert!(other.holders[0].words.contains("an ioctl that is not a control"), "{:?}", other.holders);

    let placed = parse(PLACED).expect("a state");
    assert_eq!(
        (placed.phase, placed.argument, placed.entered),
        (Phase::Placed, Some(Argument { source: "driver", errno: None }), Some(0))
    );
    assert_eq!((placed.redirect, placed.probes), (None, None), "one of an older version does not say");
    let way = parse("version=1\nprobes=direct=list handler=args\nstate=placed\nredirect=ipmodify\n");
    let way = way.expect("a state");
    assert_eq!((way.redirect.as_deref(), way.probes.as_deref()), (Some("ipmodify"), Some("direct=list handler=args")));
    let stuck = parse("version=1\nabi=2\nstate=stuck\n").expect("a state");
    assert_eq!((stuck.phase.word(), stuck.phase.is_placed()), ("stuck", false));
    let old = parse(ARMED).expect("a state");
    assert_eq!((old.argument, old.entered, old.translated), (None, None, None), "format 1 does not say");
}

#[test]
fn waiting_module_has_no_driver_and_no_hooks() {
    let state = parse("version=0.1.0\nabi=1\nstate=waiting\ndriver=-\nhooks=\ninside=0\n").expect("a state");
    assert_eq!((state.phase, state.driver, state.hooks.len()), (Phase::Waiting, None, 0));
}

#[test]
fn refusal_names_symbol_and_errno() {
    for (text, symbol, errno) in [("os_find_ns_pid:-16", "os_find_ns_pid", 16), ("os_is_init_ns:2", "os_is_init_ns", 2)]
    {
        let state = parse(&format!("version=0.1.0\nstate=refused\nrefused={text}\n")).expect("a state");
        assert_eq!(state.refused, Some(Refusal { symbol: symbol.to_string(), errno }));
    }
}

#[test]
fn missing_lines_are_named() {
    assert_eq!(parse(""), Err("state"));
    assert_eq!(parse("state=armed\n"), Err("version"));
    assert_eq!(parse("version=1\nstate=refused\n"), Err("refused"));
}

#[test]
fn unknown_phase_is_kept() {
    let state = parse("version=9\nstate=resting\nmood=good\n").expect("a state");
    assert_eq!(state.phase, Phase::Other("resting".to_string()));
}

#[test]
fn counters_keep_modules_order() {
    let text = "translated.GPU_GET_PIDS=7\ntranslated.GPU_GET_PID_INFO=0\npassed.unknown_size=2\nnew.kind=1\nbroken\n";
    let expect = Counters {
        translated: vec![("GPU_GET_PIDS".to_string(), 7), ("GPU_GET_PID_INFO".to_string(), 0)],
        passed: vec![("unknown_size".to_string(), 2)],
    };
    assert_eq!(parse_counters(text), expect);
}

#[test]
fn every_reason_has_explanation() {
    for reason in mpu_core::Reason::ALL {
        assert!(explain_reason(reason.name()).is_some_and(|s| s.len() > 20), "{}", reason.name());
    }
    assert_eq!(explain_reason("made_up"), None);
}

#[test]
fn absent_module_reads_as_none() {
    let fake = FakeHost::in_order();
    assert_eq!(read(&fake.host()).expect("no error"), None);
    fake.write("/sys/module/mpu/parameters/state", ARMED);
    assert!(read(&fake.host()).expect("no error").is_some());
    fake.write("/sys/module/mpu/parameters/state", "version=1\nstate=refused\n");
    assert_eq!(read(&fake.host()).expect_err("malformed").code(), "state_malformed");
}
