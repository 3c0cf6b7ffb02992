//! Breaking connections on command: the proxy that `garenne drill --cuts` uses.

pub use garenne_console::drill::Proxy;
