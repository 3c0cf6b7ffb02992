// One implementation for both module systems, so that `instanceof` holds between them.
import garenne from "./index.cjs";

export const { run, Cancelled, Reject, Retry, Snooze, Gateway, GatewayError } = garenne;
export default garenne;
