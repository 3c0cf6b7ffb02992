//! Scenarios on real servers, all in one binary: it links once, and they share a broker.

mod scenarios {
    mod bad_messages;
    mod clean_stops;
    mod console;
    mod copies;
    mod crash;
    mod credit;
    mod dead_letters;
    mod drill;
    mod fleet;
    mod foreign_publishers;
    mod gateway;
    mod gateway_receipts;
    mod harness;
    mod poison;
    mod publisher_pool;
    mod reconnect;
    mod retry;
    mod shutdown_escalated;
    mod shutdown_hard;
    mod shutdown_light;
    mod shutdown_quiet;
    mod shutdown_soft;
    mod shutdown_soft_timeout;
    mod sink_postgres;
    mod start_refused;
}
