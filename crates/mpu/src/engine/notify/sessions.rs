//! Lists of encoder sessions that the caller wants in part, or only the number of.
//!
//! Owns that the part and the number are of the caller's own: the driver counts everybody's, and may list others' before them. So it is
//! asked for all. Where a release takes no other question than the caller's, the caller gets of that what is its own.
//!
//! Outside truth: subdeviceCtrlCmdGpuGetNvencSwSessionInfo and …V2 of subdevice_ctrl_gpu_kernel.c, 580.95.05: without a table, or for 0
//! entries, the number of all; releases differ in whether less than all 512 entries are an error.

use super::table::Table;
use super::words::{put, word};
use mpu_abi::{Control, Inner, Layout, Row, Rows};

/// How many sessions a caller wants, where that is not all.
pub(super) struct Room {
    /// 0: only how many there are.
    entries: u32,
    rows: Rows,
    is_in_params: bool,
}

impl Room {
    /// None where all are asked for, or something else.
    pub(super) fn of(row: &Row, question: &[u8]) -> Option<Room> {
        let (rows, is_in_params, wants_table) = match (row.control, row.layout) {
            (Control::NvencSessions, Layout::Embedded { inner: Inner::Rows(rows), .. }) => {
                (rows, false, Table::of(row, question).is_some())
            }
            (Control::NvencSessionsV2, Layout::List(rows)) => (rows, true, true),
            _ => return None,
        };
        let entries = if wants_table { word(question, rows.count.into()) } else { 0 };
        (entries < rows.capacity.into()).then_some(Room { entries, rows, is_in_params })
    }

    /// The question for all of them.
    pub(super) fn all(&self, question: &[u8]) -> Vec<u8> {
        let mut all = question.to_vec();
        put(&mut all, self.rows.count.into(), self.rows.capacity.into());
        all
    }

    /// Leaves of the caller's own sessions, which `params` count, as many as it has room for.
    pub(super) fn cut(&self, params: &mut [u8]) {
        let own = word(params, self.rows.count.into());
        let given = if self.entries == 0 { own } else { own.min(self.entries) };
        put(params, self.rows.count.into(), given);
        let end = usize::from(self.rows.first) + self.entries as usize * usize::from(self.rows.stride);
        if let Some(beyond) = params.get_mut(end..).filter(|_| self.is_in_params) {
            beyond.fill(0);
        }
    }

    /// Bytes of a table behind a pointer that the caller gets.
    pub(super) fn bytes(&self) -> usize {
        self.entries as usize * usize::from(self.rows.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(control: Control) -> &'static Row {
        mpu_abi::ROWS.iter().find(|row| row.control == control).expect("a row")
    }

    #[test]
    fn a_caller_with_little_room_gets_as_many_of_its_own_and_one_without_gets_their_number() {
        let row = row(Control::NvencSessionsV2);
        let mut question = vec![0; row.params_size as usize];
        for (wanted, own, given) in [(0, 7, 7), (2, 7, 2), (9, 7, 7), (511, 0, 0)] {
            put(&mut question, 0, wanted);
            let room = Room::of(row, &question).expect("not all");
            let mut answer = room.all(&question);
            assert_eq!(word(&answer, 0), 512);
            answer[4..].fill(1);
            put(&mut answer, 0, own);
            room.cut(&mut answer);
            assert_eq!(word(&answer, 0), given);
            assert_eq!(answer[4..].iter().filter(|byte| **byte == 1).count(), wanted as usize * 32);
        }
        put(&mut question, 0, 512);
        assert!(Room::of(row, &question).is_none());
    }

    #[test]
    fn a_table_behind_a_pointer_is_cut_as_well() {
        let row = row(Control::NvencSessions);
        let mut question = vec![0; row.params_size as usize];
        put(&mut question, 0, 3);
        assert_eq!(Room::of(row, &question).expect("no pointer: only the number").bytes(), 0);
        put(&mut question, 8, 1);
        let room = Room::of(row, &question).expect("not all");
        let mut answer = room.all(&question);
        assert_eq!((room.bytes(), word(&answer, 8)), (96, 1));
        put(&mut answer, 0, 5);
        room.cut(&mut answer);
        assert_eq!((word(&answer, 0), word(&answer, 8)), (3, 1), "the pointer is no entry");
    }
}
