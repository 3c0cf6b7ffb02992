"use strict";

const { run } = require("./lib/run.js");
const { Cancelled, Reject, Retry, Snooze } = require("./lib/errors.js");
const { Gateway, GatewayError } = require("./lib/gateway.js");

module.exports = { run, Cancelled, Reject, Retry, Snooze, Gateway, GatewayError };
