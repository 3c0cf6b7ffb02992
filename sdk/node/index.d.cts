/** JSON types of a message's own headers. */
export type Header = string | number | boolean;

/** A run of a task. */
export interface Context {
  /** The same in every attempt. */
  readonly id: string;
  readonly kind: string;
  /** Counts from 1. */
  readonly attempt: number;
  readonly lane?: string;
  readonly group?: string;
  readonly key?: string;
  readonly headers: Readonly<Record<string, Header>>;
  readonly contentType: string;
  /** When the worker will cancel the task. */
  readonly deadline?: Date;
  /** When the task was published, if the publisher said so. */
  readonly enqueuedAt?: Date;
  /** The W3C trace context. */
  readonly traceparent?: string;
  readonly tracestate?: string;
  /** Aborted when the worker cancels the task. Its reason is a `Cancelled`. */
  readonly signal: AbortSignal;
  /** Reports how much of the work is done, from 0 to 1. At most ten reports a second are sent, and always the one of 1. */
  progress(done: number): void;
  /** A task that is published once this one has succeeded. Resolves when the pipe to the worker has room again. */
  followUp(kind: string, payload?: unknown, options?: FollowUpOptions): Promise<void>;
  /** Lines of the worker's log that name the task. */
  readonly log: Log;
}

export interface FollowUpOptions {
  id?: string;
  delayMs?: number;
  timeoutMs?: number;
  key?: string;
  group?: string;
  headers?: Record<string, Header>;
}

export interface Log {
  error(message: string): void;
  warn(message: string): void;
  info(message: string): void;
  debug(message: string): void;
}

/** The payload is what JSON has, or a `Buffer` if the task's content type is not JSON. */
export type Handler<Payload = any, Output = unknown> = (payload: Payload, cx: Context) => Output | Promise<Output>;

export interface RunOptions {
  /** Tasks at a time, 1 to 1000. The default is 10. */
  concurrency?: number;
  /** Called after the last task, to close what the handlers use. */
  close?: () => unknown;
}

/**
 * Runs tasks until the worker ends this process. Handlers are given by kind. A function runs whatever kind the worker
 * gives it.
 */
export function run(handlers: Record<string, Handler> | Handler, options?: RunOptions): Promise<never>;

/** The task failed for good: it becomes a dead letter. */
export class Reject extends Error {
  constructor(message?: string, options?: { reason?: "rejected" | "invalid-payload"; cause?: unknown });
  readonly reason: "rejected" | "invalid-payload";
}

/** The attempt failed. The task is retried while it has attempts left, not before `afterMs`. */
export class Retry extends Error {
  constructor(message?: string, options?: { afterMs?: number; cause?: unknown });
  readonly afterMs?: number;
}

/** The task cannot run now. It is run again after `afterMs`, and no attempt is spent. */
export class Snooze extends Error {
  constructor(afterMs: number);
  readonly afterMs: number;
}

/** The reason of `Context.signal`: the worker asked the task to stop. */
export class Cancelled extends Error {
  constructor(reason: string);
  readonly reason: "deadline" | "stopped" | "shutdown";
}

export interface GatewayOptions {
  /** Sent as a bearer token. */
  token?: string;
  /** How long `publish` repeats a request that the gateway could not serve. The default is 30,000. */
  retryForMs?: number;
  /** How long one request may take. The default is 10,000. */
  timeoutMs?: number;
}

export interface PublishOptions {
  /** Names the task for repetitions: the same key with the same payload is the same task. A random UUID by default. */
  idempotencyKey?: string;
  delayMs?: number;
  timeoutMs?: number;
  key?: string;
  group?: string;
  traceparent?: string;
  tracestate?: string;
  signal?: AbortSignal;
}

/** Publishes tasks through a gateway. */
export class Gateway {
  constructor(url: string | URL, options?: GatewayOptions);
  /** Resolves with the task's id when the task is stored. */
  publish(kind: string, payload?: unknown, options?: PublishOptions): Promise<string>;
}

/** The gateway refused a task. */
export class GatewayError extends Error {
  readonly status: number;
  /** The code of the problem document, such as `missing-field`. */
  readonly code?: string;
}
