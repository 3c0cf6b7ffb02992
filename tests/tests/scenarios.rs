//! Scenarios on real servers, all in one binary: it links once, and they share a broker.

mod scenarios {
    mod bad_messages;
    mod crash;
    mod credit;
    mod fleet;
    mod gateway;
    mod gateway_receipts;
    mod harness;
    mod retry;
    mod shutdown_escalated;
    mod shutdown_hard;
    mod shutdown_light;
    mod shutdown_quiet;
    mod shutdown_soft;
    mod shutdown_soft_timeout;
}
