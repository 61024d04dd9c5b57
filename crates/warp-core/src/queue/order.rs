//! Walking the line: the part every policy shares. A need that did not fit once in a pass does not
//! fit later in it (starting work only takes capacity away), so each need is tried once.

use super::node_set::NodeSet;
use super::state::State;

/// Needs that are known not to fit in this pass, with a count of the jobs that are still worth
/// looking at.
#[derive(Debug)]
pub struct Blocked {
    needs: Vec<bool>,
}

impl Blocked {
    pub fn none(state: &State) -> Self {
        Self {
            needs: vec![false; state.needs()],
        }
    }

    pub fn has(&self, need: u32) -> bool {
        self.needs[need as usize]
    }

    pub fn set(&mut self, need: u32) {
        self.needs[need as usize] = true;
    }

    pub fn clear(&mut self) {
        self.needs.fill(false);
    }

    /// Whether nobody in line has a need that might still fit.
    pub fn all(&self, state: &State) -> bool {
        (0_u32..)
            .zip(&self.needs)
            .all(|(need, blocked)| *blocked || state.pending_of(need) == 0)
    }
}

/// Starts what fits, in order, off the nodes of `avoid`; `strict` stops at the first that does not.
pub fn start_in_order(state: &mut State, strict: bool, avoid: Option<&NodeSet>) {
    let mut blocked = Blocked::none(state);
    let mut index = 0;
    while index < state.pending().len() {
        let need = state.waiting(index).need;
        if blocked.has(need) {
            index += 1;
        } else if !state.try_start(index, avoid) {
            blocked.set(need);
            if strict || blocked.all(state) {
                return;
            }
            index += 1;
        }
    }
}
