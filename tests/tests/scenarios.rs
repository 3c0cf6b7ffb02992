//! Scenarios on real servers, all in one binary: it links once, and they share a broker.

mod scenarios {
    mod alarms;
    mod bad_messages;
    mod changed_password;
    mod chaos;
    mod clean_stops;
    mod console;
    mod consumer_timeout;
    mod copies;
    mod crash;
    mod credit;
    mod dashboard;
    mod dead_letters;
    mod derived_values;
    mod drill;
    mod fleet;
    mod follow_ups;
    mod foreign_publishers;
    mod forgotten_consumer;
    mod gateway;
    mod gateway_overload;
    mod gateway_receipts;
    mod harness;
    mod heartbeats;
    mod metrics_truth;
    mod packs;
    mod poison;
    mod publisher_pool;
    mod receipts;
    mod reconnect;
    mod retry;
    mod rights;
    mod rolling_restarts;
    mod shutdown_escalated;
    mod shutdown_hard;
    mod shutdown_light;
    mod shutdown_quiet;
    mod shutdown_soft;
    mod shutdown_soft_timeout;
    mod sink_postgres;
    mod soak;
    mod start_interrupted;
    mod start_refused;
    mod stop_tasks;
    mod tls;
}
