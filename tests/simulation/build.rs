//! Names a condition that `./dev histories` sets.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(tokio_unstable)");
}
