//! Limits of GPU memory in a container's environment.
//!
//! Source: NVIDIA Container Toolkit 1.20.1, `apply-cuda-memory-limits`.

use super::container::Container;
use super::error::RequestError;
use crate::driver::MemoryLimits;
use serde_json::Value;

const REQUEST: &str = "NVIDIA_GPU_MEMORY_REQUEST";
const LIMIT: &str = "NVIDIA_GPU_MEMORY_LIMIT";
const MIB: u64 = 1 << 20;

/// The limits in a specification's environment, if any.
pub fn memory_limits(spec: &Value) -> Result<Option<MemoryLimits>, RequestError> {
    // Without a limit, malformed entries of the specification are not an error.
    let env = spec.pointer("/process/env").and_then(Value::as_array).into_iter().flatten();
    let name = |entry: &Value| entry.as_str().and_then(|entry| Some(entry.split_once('=')?.0.to_owned()));
    if !env.filter_map(name).any(|name| name == REQUEST || name == LIMIT) {
        return Ok(None);
    }
    limits_of(&Container::read(spec)?.0)
}

pub(super) fn limits_of(container: &Container<'_>) -> Result<Option<MemoryLimits>, RequestError> {
    let bytes = |name: &'static str| match container.variable(name) {
        Some(value) => {
            parse_mib(value).map(Some).map_err(|why| RequestError::Memory { name, value: value.into(), why })
        }
        None => Ok(None),
    };
    let (soft, hard) = (bytes(REQUEST)?, bytes(LIMIT)?);
    if soft.is_none() && hard.is_none() {
        return Ok(None);
    }
    let hard = hard.unwrap_or(MemoryLimits::NONE);
    let soft = soft.unwrap_or(hard);
    if soft > hard {
        let value = container.variable(REQUEST).unwrap_or_default().to_string();
        return Err(RequestError::Memory { name: REQUEST, value, why: "it is larger than NVIDIA_GPU_MEMORY_LIMIT" });
    }
    Ok(Some(MemoryLimits { soft, hard }))
}

fn parse_mib(value: &str) -> Result<u64, &'static str> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| value.parse::<u64>().ok()).flatten();
    number.and_then(|number| number.checked_mul(MIB)).ok_or("it is no whole number of MiB, or too large a one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_whole_numbers_of_mebibytes() {
        let limits_in = |env: &[&str]| {
            let found = memory_limits(&json!({"process": {"env": env}})).map_err(|error| error.to_string());
            found.map(|found| found.map(|limits| (limits.soft, limits.hard)))
        };
        let rows: [(&[&str], _); 5] = [
            (&["A=1", "NVIDIA_GPU_MEMORY_LIMITS=1"], None),
            (&["NVIDIA_GPU_MEMORY_LIMIT=4096"], Some((4 << 30, 4 << 30))),
            (&["NVIDIA_GPU_MEMORY_REQUEST=1"], Some((MIB, MemoryLimits::NONE))),
            (&["NVIDIA_GPU_MEMORY_REQUEST=1", "NVIDIA_GPU_MEMORY_LIMIT=2"], Some((MIB, 2 * MIB))),
            (&["NVIDIA_GPU_MEMORY_LIMIT=0"], Some((0, 0))),
        ];
        for (env, limits) in rows {
            assert_eq!(limits_in(env), Ok(limits), "{env:?}");
        }
        let odd = |env: Value| memory_limits(&json!({"process": {"env": env}, "mounts": [null]}));
        assert_eq!(odd(json!([null, "A=1"])), Ok(None), "no request");
        assert!(odd(json!([null, "NVIDIA_GPU_MEMORY_LIMIT=1"])).is_err());
        for bad in ["", "x", "-1", "+1", " 1", "1.5", "4Gi", "0x10", "17592186044416", "99999999999999999999999"] {
            let error = limits_in(&[&format!("NVIDIA_GPU_MEMORY_LIMIT={bad}")]).unwrap_err();
            assert!(error.contains(&format!("NVIDIA_GPU_MEMORY_LIMIT={bad:?}")), "{error}");
        }
        let error = limits_in(&["NVIDIA_GPU_MEMORY_REQUEST=3", "NVIDIA_GPU_MEMORY_LIMIT=2"]).unwrap_err();
        assert!(error.contains("larger than NVIDIA_GPU_MEMORY_LIMIT"), "{error}");
    }
}
