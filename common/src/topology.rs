//! Exchanges, queues and streams: names, declaration, verification.
