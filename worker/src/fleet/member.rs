//! This worker as a member of the fleet.

use std::{
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use garenne_common::{
    broker::{Message, Publisher, Target},
    shutdown::{Command, Mode},
    task::{Envelope, StopOrder, epoch_ms},
    topology::Names,
};
use lapin::BasicProperties;
use serde::Deserialize;
use tokio::{
    sync::{Mutex as AsyncMutex, mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    lives::{Life, Lives},
    stops::Stops,
};
use crate::consumer::{Link, journal, presence};

/// How long after a message came back its worker's death is certainly visible: the broker deletes the
/// exclusive queue of a dead connection in the same breath as it requeues its messages.
const SETTLING: Duration = Duration::from_millis(250);
/// How long the streams may take to be read before work starts.
const CATCH_UP: Duration = Duration::from_secs(10);

/// A command that arrives on the worker's own queue.
#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
enum Order {
    Shutdown { mode: Option<Mode> },
    Quiet,
    Resume,
}

/// This worker among the others.
pub(crate) struct Member {
    worker: Arc<str>,
    incarnation: String,
    names: Names,
    link: Link,
    publisher: Publisher,
    lives: Mutex<Lives>,
    stops: RwLock<Stops>,
    /// When the others were last looked at, begun.
    looked: AsyncMutex<Option<Instant>>,
}

/// The tasks that keep a member informed; aborted when it leaves.
pub(crate) struct Membership {
    pub(crate) member: Arc<Member>,
    tasks: Vec<JoinHandle<()>>,
}

impl Member {
    /// Reads the streams to their end, then lets the fleet know. `stop` hears of each stop order as
    /// it comes; `commands` of what arrives on the worker's own queue.
    pub(crate) async fn join(
        worker: Arc<str>,
        names: Names,
        link: Link,
        publisher: Publisher,
        commands: mpsc::Sender<Command>,
        stop: impl Fn(&StopOrder) + Send + 'static,
    ) -> Membership {
        let member = Arc::new(Self {
            incarnation: uuid::Uuid::now_v7().to_string(),
            worker,
            names,
            link,
            publisher,
            lives: Mutex::default(),
            stops: RwLock::default(),
            looked: AsyncMutex::default(),
        });
        let (stops_read, stops_known) = watch::channel(false);
        let (lives_read, lives_known) = watch::channel(false);
        let this = Arc::clone(&member);
        let stops = journal::follow(member.link.clone(), member.names.stops(), stops_read, move |record| {
            this.stop_order(record, &stop);
        });
        let this = Arc::clone(&member);
        let lives = journal::follow(member.link.clone(), member.names.lives(), lives_read, move |record| {
            this.life(record);
        });
        let mut tasks = vec![tokio::spawn(stops), tokio::spawn(lives)];
        for mut known in [stops_known, lives_known] {
            if timeout(CATCH_UP, known.wait_for(|known| *known)).await.is_err() {
                tracing::warn!("the streams of stops and lives cannot be read yet; going on without");
            }
        }
        let this = Arc::clone(&member);
        let (present, is_present) = watch::channel(false);
        let hello = async move || {
            this.tell(|worker, incarnation, at| Life::Hello { worker, incarnation, at }).await;
            present.send_replace(true);
        };
        let default_mode = Mode::default();
        let command = move |body: &[u8]| {
            let command = match serde_json::from_slice(body) {
                Ok(Order::Shutdown { mode }) => Command::Shutdown(mode.unwrap_or(default_mode)),
                Ok(Order::Quiet) => Command::Quiet,
                Ok(Order::Resume) => Command::Resume,
                Err(error) => return tracing::warn!(%error, "a command that cannot be read"),
            };
            // A full channel holds commands enough.
            let _ = commands.try_send(command);
        };
        let (link, names, worker) = (member.link.clone(), member.names.clone(), member.worker.to_string());
        tasks.push(tokio::spawn(presence::keep(link, names, worker, hello, command)));
        let mut is_present = is_present;
        if timeout(CATCH_UP, is_present.wait_for(|present| *present)).await.is_err() {
            tracing::warn!(worker = %member.worker, "no queue of its own: does another worker have this id?");
        }
        Membership { member, tasks }
    }

    /// Whether an operator stopped this task.
    pub(crate) fn is_stopped(&self, task: &Envelope) -> bool {
        self.stops.read().unwrap_or_else(PoisonError::into_inner).cover(task)
    }

    /// Unclean deaths that may have to do with a message that just came back.
    pub(crate) async fn unclean_deaths(&self) -> usize {
        let arrived = Instant::now();
        tokio::time::sleep(SETTLING).await;
        let mut looked = self.looked.lock().await;
        if looked.is_none_or(|looked| looked < arrived + SETTLING) {
            *looked = Some(Instant::now());
            self.look_for_the_dead().await;
        }
        drop(looked);
        self.lives().deaths(epoch_ms(SystemTime::now()))
    }

    async fn look_for_the_dead(&self) {
        let open = self.lives().open();
        for (worker, incarnation) in
            open.into_iter().filter(|(_, incarnation)| *incarnation != self.incarnation)
        {
            if presence::is_alive(&self.link, &self.names, &worker).await == Some(false) {
                let died = Life::Died { worker, incarnation, at: epoch_ms(SystemTime::now()) };
                tracing::warn!(?died, "a worker died uncleanly");
                self.lives().apply(died.clone());
                self.publish(&died).await;
            }
        }
    }

    fn stop_order(&self, record: &[u8], stop: &impl Fn(&StopOrder)) {
        match serde_json::from_slice::<StopOrder>(record) {
            Ok(order) => {
                self.stops.write().unwrap_or_else(PoisonError::into_inner).apply(&order);
                stop(&order);
            }
            Err(error) => tracing::warn!(%error, "a stop order that cannot be read"),
        }
    }

    fn life(&self, record: &[u8]) {
        match serde_json::from_slice::<Life>(record) {
            Ok(life) => self.lives().apply(life),
            Err(error) => tracing::warn!(%error, "a life that cannot be read"),
        }
    }

    fn lives(&self) -> std::sync::MutexGuard<'_, Lives> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tell(&self, life: impl Fn(String, String, i64) -> Life) {
        let life = life(self.worker.to_string(), self.incarnation.clone(), epoch_ms(SystemTime::now()));
        self.publish(&life).await;
    }

    /// Best effort: without the record a death goes unnoticed, which costs one more worker at most.
    async fn publish(&self, life: &Life) {
        let body = serde_json::to_vec(life).expect("text and numbers");
        let target = Target::announce(self.names.events(), format!("life.{}", self.worker));
        let properties =
            BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
        if let Err(error) = self.publisher.publish(Message { target, properties, body: body.into() }).await {
            tracing::warn!(%error, "a life could not be told");
        }
    }
}

impl Membership {
    /// Says good-bye: everything is settled.
    pub(crate) async fn leave(self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.member.tell(|worker, incarnation, at| Life::Goodbye { worker, incarnation, at }).await;
    }
}
