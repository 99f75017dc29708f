//! BPF device programs. A cgroup of version 2 runs them before a device node is opened.
//!
//! Source: Linux, `include/uapi/linux/bpf.h` (`struct bpf_cgroup_dev_ctx`, `BPF_DEVCG_*`) and
//! `Documentation/bpf/standardization/instruction-set.rst`.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

// Registers. 0 is the result, 1 the address of the context, which the old program needs unchanged.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const TYPE: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const AND_IMMEDIATE: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const JUMP_UNLESS_EQUAL_32: u8 = 0x56;
const EXIT: u8 = 0x95;

const CHARACTER_DEVICE: i32 = 2;
const ACCESS_MKNOD: i32 = 1;

/// A program that allows reads and writes of these devices. For all other accesses, also mknod, it runs the old program. `None` if there
/// are too many rules for a jump's 16-bit offset.
pub fn prepend_rules(old: &[u64], allowed: &[DeviceNumber]) -> Option<Vec<u64>> {
    let mut program = rules_program(allowed)?;
    program.extend_from_slice(old);
    Some(program)
}

/// Whether a program already begins with these rules.
pub fn starts_with_rules(program: &[u64], allowed: &[DeviceNumber]) -> bool {
    rules_program(allowed).is_some_and(|rules| program.starts_with(&rules))
}

fn rules_program(allowed: &[DeviceNumber]) -> Option<Vec<u64>> {
    let rules: Vec<u64> = allowed.iter().flat_map(rule).collect();
    let past_rules = i16::try_from(rules.len()).ok()?;
    let mut program = vec![
        instruction(LOAD_WORD, TYPE, CONTEXT, 0, 0),
        instruction(MOVE, ACCESS, TYPE, 0, 0),
        instruction(AND_IMMEDIATE, TYPE, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(AND_IMMEDIATE, ACCESS, 0, 0, ACCESS_MKNOD),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
        instruction(JUMP_UNLESS_EQUAL, TYPE, 0, past_rules.checked_add(1)?, CHARACTER_DEVICE),
        instruction(JUMP_UNLESS_EQUAL, ACCESS, 0, past_rules, 0),
    ];
    program.extend(rules);
    Some(program)
}

fn rule(device: &DeviceNumber) -> [u64; 4] {
    [
        // Compares 32 bits: a 64-bit comparison would sign-extend numbers of 2³¹ and above.
        instruction(JUMP_UNLESS_EQUAL_32, MAJOR, 0, 3, device.major as i32),
        instruction(JUMP_UNLESS_EQUAL_32, MINOR, 0, 2, device.minor as i32),
        instruction(MOVE_IMMEDIATE, RESULT, 0, 0, 1),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let [offset_0, offset_1] = offset.to_le_bytes();
    let [a, b, c, d] = immediate.to_le_bytes();
    u64::from_le_bytes([code, from << 4 | to, offset_0, offset_1, a, b, c, d])
}

#[cfg(test)]
pub fn constant(result: i32) -> Vec<u64> {
    vec![instruction(MOVE_IMMEDIATE, RESULT, 0, 0, result), instruction(EXIT, 0, 0, 0, 0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would, for the instructions that this module uses.
    fn run(program: &[u64], kind: u32, access: u32, device: DeviceNumber) -> u64 {
        let context = [kind | access << 16, device.major, device.minor];
        let mut registers = [0u64; 11];
        let mut at = 0usize;
        for _ in 0..10_000 {
            let [code, both, o0, o1, a, b, c, d] = program[at].to_le_bytes();
            let (to, from) = (usize::from(both & 15), usize::from(both >> 4));
            let offset = i16::from_le_bytes([o0, o1]);
            let immediate = i32::from_le_bytes([a, b, c, d]);
            let mut jump = 0;
            match code {
                LOAD_WORD => registers[to] = context[offset as usize / 4].into(),
                MOVE => registers[to] = registers[from],
                MOVE_IMMEDIATE => registers[to] = immediate as u64,
                AND_IMMEDIATE => registers[to] &= immediate as u64,
                SHIFT_RIGHT => registers[to] >>= immediate,
                JUMP_UNLESS_EQUAL if registers[to] != immediate as u64 => jump = offset,
                JUMP_UNLESS_EQUAL_32 if registers[to] as u32 != immediate as u32 => jump = offset,
                JUMP_UNLESS_EQUAL | JUMP_UNLESS_EQUAL_32 => {}
                EXIT => return registers[0],
                other => panic!("instruction {other:#x}"),
            }
            at = at.checked_add_signed(1 + isize::from(jump)).unwrap();
        }
        panic!("the program does not end");
    }

    #[test]
    fn only_named_devices_bypass_old_program() {
        let gpu = |minor| DeviceNumber { major: 195, minor };
        let large = DeviceNumber { major: 0xfff0_0001, minor: 0x8000_0000 };
        let allowed = [gpu(0), gpu(255), large];
        let refuse_else = prepend_rules(&constant(0), &allowed).unwrap();
        let (read_write, make, block) = (6, 7, 1);
        for device in allowed {
            assert_eq!(run(&refuse_else, 2, read_write, device), 1, "{device:?}");
            assert_eq!(run(&refuse_else, 2, make, device), 0, "{device:?} may be made");
            assert_eq!(run(&refuse_else, block, read_write, device), 0, "{device:?} as a block device");
        }
        for other in [gpu(1), DeviceNumber { major: 0, minor: 255 }, DeviceNumber { major: 0xfff0_0001, minor: 0 }] {
            assert_eq!(run(&refuse_else, 2, read_write, other), 0, "{other:?}");
            let allow_else = prepend_rules(&constant(1), &allowed).unwrap();
            assert_eq!(run(&allow_else, 2, read_write, other), 1, "{other:?}");
        }
        assert!(starts_with_rules(&refuse_else, &allowed));
        assert!(!starts_with_rules(&refuse_else, &allowed[..2]));
        let twice = prepend_rules(&refuse_else, &[gpu(7)]).unwrap();
        assert_eq!([gpu(7), gpu(0), gpu(1)].map(|device| run(&twice, 2, read_write, device)), [1, 1, 0]);
    }

    #[test]
    fn too_many_rules_are_refused() {
        let many = vec![DeviceNumber { major: 1, minor: 1 }; 9_000];
        assert!(prepend_rules(&constant(0), &many).is_none());
    }
}
