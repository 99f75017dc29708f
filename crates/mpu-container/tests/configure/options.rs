//! Options that callers pass, and a socket that cannot be mounted.

use crate::CONFIGURE;
use crate::test_host::TestHost;

#[test]
fn user_and_no_pivot_options_are_effective() {
    let Some(host) = TestHost::new() else { return };
    let refused = host.script(&format!("mounts; cli --user=nobody-here {CONFIGURE} $PWD/ct"));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("--user=nobody-here: there is no user 'nobody-here'"), "{text}");
    let forbid = "strace -f -o trace -e trace=pivot_root,openat -e inject=pivot_root:error=EPERM";
    if !host.script(&format!("{forbid} true")).status.success() {
        return eprintln!("skipped: no strace that makes pivot_root fail");
    }
    let run = |options: &str| {
        host.root();
        host.script(&format!("mounts; {forbid} \"$CLI\" cli --root=$PWD/host {options} {CONFIGURE} $PWD/ct"))
    };
    let text = String::from_utf8_lossy(&run("").stderr).into_owned();
    assert!(text.contains("ldcache error"), "{text}");
    let done = run("--no-pivot");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!std::fs::read_to_string(host.path("trace")).unwrap().contains("pivot_root"));
    assert!(host.path("ct/etc/ld.so.cache").exists());
    // A user who may not open the nodes cannot query them: values that a condition needs are then unknown.
    let ask = |user: &str| {
        host.root();
        let condition = "--require='arch>=1.0'";
        let done = host.script(&format!(
            "mounts; chmod 600 host/dev/*
             strace -f -o trace -e trace=openat \"$CLI\" cli --root=$PWD/host --user={user} {CONFIGURE} {condition} $PWD/ct || true"
        ));
        assert!(done.status.success());
        let trace = std::fs::read_to_string(host.path("trace")).unwrap();
        trace.lines().filter(|line| line.contains("host/dev/nvidia") && line.contains("EACCES")).count()
    };
    assert_eq!(ask("0:0"), 0);
    assert!(ask("1000:1000") > 0);
}

/// A pod within a pod: the socket exists and cannot be mounted again. Programs work without it.
#[test]
fn unmountable_socket_is_skipped_with_note() {
    let Some(host) = TestHost::new() else { return };
    let socket = |folder: &str| {
        let path = host.path(&format!("{folder}/run/nvidia-persistenced/socket"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::net::UnixListener::bind(path).unwrap()
    };
    let _daemon = socket("host");
    let done = host.script(&format!("mounts; cli {CONFIGURE} $PWD/ct; ls -l ct/run/nvidia-persistenced"));
    let text = [&done.stdout[..], &done.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("socket") && !text.contains("note"), "{:?} {text}", done.status);
    // The mount point cannot be made, or is something else.
    for obstacle in ["mount -t tmpfs -o ro run ct/run", "mkdir -p ct/run/nvidia-persistenced/socket/x"] {
        host.root();
        std::fs::create_dir(host.path("ct/run")).unwrap();
        let done = host.script(&format!("mounts; {obstacle}; cli {CONFIGURE} $PWD/ct; ls ct/dev"));
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{obstacle}: {text}");
        let note = "nvidia-container-cli: note: the container goes without /run/nvidia-persistenced/socket: ";
        assert!(text.contains(note) && text.lines().count() == 1, "{obstacle}: {text}");
        assert!(String::from_utf8_lossy(&done.stdout).contains("nvidia0"), "{obstacle}: {text}");
    }
}
