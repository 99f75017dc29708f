//! What every driver is known to have. A built driver in which little of that is found is a piece of one, or one that this
//! reader does not understand: of such a source nobody can say that nothing is new.

use std::collections::{BTreeMap, BTreeSet};

use mpu_abi::{Release, Row};

/// What is expected of a driver.
pub struct Expected<'a> {
    /// Controls that programs call.
    pub rows: &'a [Row],
    /// Controls' numbers by their structures: of the rows, and of what is known without a row.
    pub numbers: BTreeMap<String, u32>,
}

impl Expected<'_> {
    /// Whether programs are known to call this control. A row's number counts with a row's size, because a later release
    /// may give the number to another control.
    pub fn is_called(&self, cmd: u32, size: usize) -> bool {
        let mut rows = self.rows.iter().filter(|row| row.cmd.0 == cmd).peekable();
        match rows.peek() {
            Some(_) => rows.any(|row| row.params_size as usize == size),
            None => self.numbers.values().any(|known| *known == cmd),
        }
    }

    /// What is missing, in a sentence, if fewer than two thirds of the controls that every driver has are found.
    ///
    /// A control counts if 515.43.04 has it and the newest driver too, by the rows: those are ten. The releases up to 595.45.04
    /// have nine of them in their tables, and the biggest piece of one (the subdevice's tables) has five. Two thirds are seven:
    /// a later release may drop a control, and a piece never does for the whole.
    pub fn too_few(&self, found: impl Fn(u32) -> bool) -> Option<String> {
        let all: BTreeSet<&str> = self.rows.iter().filter(|row| lasts(row)).map(|row| row.control.name()).collect();
        let here: BTreeSet<&str> =
            self.rows.iter().filter(|row| lasts(row) && found(row.cmd.0)).map(|row| row.control.name()).collect();
        let missing: Vec<&str> = all.difference(&here).copied().collect();
        (here.len() * 3 < all.len() * 2).then(|| {
            let (count, all, missing) = (here.len(), all.len(), missing.join(", "));
            format!(
                "of {all} controls that every driver has {count} are in it, too few for a whole driver: what else is missing is not \
known. Not found: {missing}"
            )
        })
    }
}

/// Whether every open driver has a row's control.
fn lasts(row: &Row) -> bool {
    let is_ours = mpu_abi::find(row.cmd, row.params_size).is_some();
    let has = |release| mpu_abi::row_of(row.control, release).is_some();
    // Rows that a test makes up last.
    !is_ours || (has(Release::new(515, 43, 4)) && has(Release::new(u16::MAX, 0, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn too_few(found: &[u32]) -> bool {
        let expected = Expected { rows: mpu_abi::ROWS, numbers: BTreeMap::new() };
        expected.too_few(|cmd| found.contains(&cmd)).is_some()
    }

    /// Numbers out of the tables of released drivers.
    #[test]
    fn a_release_has_enough_and_its_biggest_piece_has_not() {
        let subdevice = [0x2080_018d, 0x2080_018e, 0x2080_2096, 0x2080_a083, 0x2080_016e, 0x2080_01af, 0x2080_017c];
        let client = [0xb03, 0xb04, 0x607];
        let of_515 = [&subdevice[..5], &subdevice[6..], &client, &[0x90cc_0103]].concat();
        let of_550 = [&subdevice[..], &client, &[0x90cc_0103]].concat();
        let of_595: Vec<u32> = of_550.iter().copied().filter(|cmd| *cmd != 0x2080_a083).collect();
        for release in [of_515, of_550, of_595] {
            assert!(!too_few(&release), "{release:x?}");
            assert!(!too_few(&release[1..]), "{release:x?} without one");
        }
        assert!(too_few(&subdevice));
        assert!(too_few(&client));
        assert!(too_few(&[]));
    }
}
