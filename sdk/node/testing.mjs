import testing from "./testing.cjs";

export const { run } = testing;
export default testing;
