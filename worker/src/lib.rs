//! The stock worker: the library [`garenne`] with the sensor kinds, the `bench.*` kinds and the sink `postgres`.

mod bench;
pub mod cli;
mod settings;

pub use settings::StockConfig;
