//! Black-box tests of the repository and the binary.

mod apiserver;
mod architecture;
mod docs;
mod process;
mod up;
