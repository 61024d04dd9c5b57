//! Black-box tests of the repository and the binary.

mod architecture;
mod docs;
mod process;
mod up;
