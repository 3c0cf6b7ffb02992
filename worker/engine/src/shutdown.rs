//! How a worker stops: modes, the commands that a running worker takes, and the receipt of its deliveries.

pub use garenne_common::shutdown::{Command, Mode, Receipt, mode::UnknownMode, receipt::ReceiptError};
