//! Other ways to run the same tasks, measured in the same rounds: channels, and one spawned task each.

use std::{hint::black_box, sync::Arc, time::Duration};

use tokio::{runtime::Runtime, sync::mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    GROUP,
    harness::{Measured, Watch},
    ours::Countdown,
};

type Message = (u64, &'static Countdown);

fn measured<F: Future<Output = Measured> + Send + 'static>(runtime: &Runtime, run: F) -> Measured {
    runtime.block_on(runtime.spawn(run)).expect("nothing panics here")
}

/// Two tasks with a bounded channel each, filled in turns. With `many`, they receive in batches; with groups of one, each
/// message is a round trip.
pub(crate) fn tokio_mpsc(
    runtime: &Arc<Runtime>,
    (groups, group): (u64, u64),
    many: bool,
) -> impl FnMut() -> Measured + 'static {
    let senders: Arc<[mpsc::Sender<Message>]> = (0..2)
        .map(|_| {
            let (sender, mut receiver) = mpsc::channel::<Message>(GROUP as usize);
            runtime.spawn(async move {
                let mut batch = Vec::with_capacity(64);
                if many {
                    while receiver.recv_many(&mut batch, 64).await > 0 {
                        for (number, countdown) in batch.drain(..) {
                            black_box(number);
                            countdown.one();
                        }
                    }
                } else {
                    while let Some((number, countdown)) = receiver.recv().await {
                        black_box(number);
                        countdown.one();
                    }
                }
            });
            sender
        })
        .collect();
    let runtime = Arc::clone(runtime);
    let countdown = Countdown::new();
    move || {
        let senders = Arc::clone(&senders);
        measured(&runtime, async move {
            let watch = Watch::start();
            for _ in 0..groups {
                countdown.start(group as usize);
                for number in 0..group {
                    let sender = &senders[number as usize % 2];
                    sender.send((number, countdown)).await.expect("the receiver exists");
                }
                countdown.wait().await;
            }
            watch.stop()
        })
    }
}

/// Two threads on one crossbeam channel.
pub(crate) fn crossbeam(runtime: &Arc<Runtime>, groups: u64) -> impl FnMut() -> Measured + 'static {
    let (sender, receiver) = crossbeam_channel::bounded::<Message>(GROUP as usize);
    for _ in 0..2 {
        let receiver = receiver.clone();
        std::thread::spawn(move || {
            while let Ok((number, countdown)) = receiver.recv() {
                black_box(number);
                countdown.one();
                // The batch: available messages are received without blocking.
                for (number, countdown) in receiver.try_iter() {
                    black_box(number);
                    countdown.one();
                }
            }
        });
    }
    let runtime = Arc::clone(runtime);
    let countdown = Countdown::new();
    move || {
        let sender = sender.clone();
        measured(&runtime, async move {
            let watch = Watch::start();
            for _ in 0..groups {
                countdown.start(GROUP as usize);
                for number in 0..GROUP {
                    sender.send((number, countdown)).expect("the receivers exist");
                }
                countdown.wait().await;
            }
            watch.stop()
        })
    }
}

/// A spawned task each. `long` gives each a timeout and a child of a cancellation token.
pub(crate) fn spawn(runtime: &Arc<Runtime>, groups: u64, long: bool) -> impl FnMut() -> Measured + 'static {
    let runtime = Arc::clone(runtime);
    let countdown = Countdown::new();
    let parent = CancellationToken::new();
    move || {
        let parent = parent.clone();
        measured(&runtime, async move {
            let watch = Watch::start();
            for _ in 0..groups {
                countdown.start(GROUP as usize);
                for number in 0..GROUP {
                    if long {
                        let token = parent.child_token();
                        tokio::spawn(async move {
                            let work = async { black_box(number) };
                            let limited = tokio::time::timeout(Duration::from_secs(60), work);
                            let _ = token.run_until_cancelled(limited).await;
                            countdown.one();
                        });
                    } else {
                        tokio::spawn(async move {
                            black_box(number);
                            countdown.one();
                        });
                    }
                }
                countdown.wait().await;
            }
            watch.stop()
        })
    }
}
