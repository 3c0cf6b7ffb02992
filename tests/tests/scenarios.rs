//! Scenarios on real servers, all in one binary: it links once, and they share a broker.

mod scenarios {
    mod harness;
}
