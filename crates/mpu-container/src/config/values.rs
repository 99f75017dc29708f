//! Enumerated values of keys.

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Chosen by the request and the host.
    Auto,
    /// The prestart hook and the container CLI inject the GPU.
    Legacy,
    /// Lists of files (Tegra).
    Csv,
    Cdi,
    /// CDI edits that are generated at the container's start.
    JitCdi,
}

/// How CUDA's forward-compatibility libraries are found in mode `legacy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CompatMode {
    /// ldconfig gets their directory as an argument.
    Ldconfig,
    /// They are mounted over the driver's libraries.
    Mount,
    /// A hook of the runtime enables them.
    Hook,
    Disabled,
}

/// The threshold of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warning,
    Info,
    Debug,
}

impl LogLevel {
    /// The names of NVIDIA's logger. As there, an unknown name means `info`.
    pub const ALL: [(&'static str, LogLevel); 8] = [
        ("error", LogLevel::Error),
        ("warning", LogLevel::Warning),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("warn", LogLevel::Warning),
        ("trace", LogLevel::Debug),
        ("fatal", LogLevel::Error),
        ("panic", LogLevel::Error),
    ];

    pub fn parse(text: &str) -> LogLevel {
        let found = LogLevel::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map_or(LogLevel::Info, |(_, level)| level)
    }
}
