//! Over which pools of GPUs the copies of a service are spread: those that have a place stay, new ones go to the first pool
//! that has room, and those for which there is none anywhere wait in the first.

/// One pool, the preferred first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Copies it has before others get more.
    pub min: u32,
    /// Most copies it has.
    pub max: u32,
    /// Copies that have a place there.
    pub placed: u32,
    /// Copies that could be placed there now beside those.
    pub spare: u32,
}

/// How many copies each pool is to have; fewer than `wanted` altogether only where every pool is at its most.
pub fn spread(wanted: u32, pools: &[Pool]) -> Vec<u32> {
    let mut copies: Vec<u32> = pools.iter().map(|pool| pool.placed.min(pool.max)).collect();
    let sum = |copies: &[u32]| {
        copies
            .iter()
            .fold(0_u32, |sum, one| sum.saturating_add(*one))
    };
    // The last gives up first, and what a pool has before others at the end.
    for by_right in [true, false] {
        for at in (0..pools.len()).rev() {
            let over = sum(&copies).saturating_sub(wanted);
            let floor = if by_right { pools[at].min } else { 0 };
            copies[at] -= over.min(copies[at].saturating_sub(floor));
        }
    }
    let mut rest = wanted.saturating_sub(sum(&copies));
    let mut spare: Vec<u32> = pools.iter().map(|pool| pool.spare).collect();
    // First what pools have before others, then where there is room, then where is to be waited.
    let steps: [fn(&Pool, u32) -> u32; 3] = [
        |pool, _| pool.min.min(pool.max),
        |pool, room| room.min(pool.max),
        |pool, _| pool.max,
    ];
    for step in steps {
        for (at, pool) in pools.iter().enumerate() {
            let room = copies[at].saturating_add(spare[at]);
            let more = step(pool, room).saturating_sub(copies[at]).min(rest);
            copies[at] += more;
            spare[at] = spare[at].saturating_sub(more);
            rest -= more;
        }
    }
    copies
}
