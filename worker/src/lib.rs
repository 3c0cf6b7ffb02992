//! The stock worker: the library [`garenne`] with the sensor kinds, the `bench.*` kinds and the sink `postgres`.

pub mod alarm;
pub mod builtin;
pub mod cli;
pub mod postgres;
mod settings;

pub use settings::StockConfig;
