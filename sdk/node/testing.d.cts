import type { Handler, Header } from "./index.cjs";

export interface TaskOptions {
  kind?: string;
  id?: string;
  attempt?: number;
  headers?: Record<string, Header>;
  lane?: string;
  group?: string;
  key?: string;
  /** Milliseconds until the deadline. The default is 600,000. */
  deadlineMs?: number;
  /** The task is cancelled right after the handler was called. */
  cancel?: "deadline" | "stopped" | "shutdown";
}

export interface Result {
  outcome: "done" | "retry" | "reject" | "snooze";
  /** Of `done`, as JSON gives it. */
  output?: any;
  /** Of `retry` and `reject`. */
  error?: string;
  /** Of `reject`. */
  reason?: "rejected" | "invalid-payload";
  /** Of `retry` and `snooze`. */
  afterMs?: number;
  followUps: { kind: string; payload: any; options: Record<string, unknown> }[];
  progress: number[];
  logs: { level: string; message: string }[];
}

/** Runs a handler without a worker. The payload and the output pass through JSON. */
export function run(handler: Handler, payload?: unknown, options?: TaskOptions): Promise<Result>;
