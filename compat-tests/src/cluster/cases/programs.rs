//! What clients' own programs (clients/) do against one broker, against a cluster whose leaders change.

use anyhow::{Context, Result, bail};

use super::partitioned::{ALL, all_in_sync, served};
use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::Stage;
use crate::program::{Answer, Ask, Host};
use crate::raw::compacted::{self, Writer};
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "lost-acks-on-replicas",
        proves: "every seventh acknowledgement is lost with its connection, five requests are in flight, and the leader is killed three times, another \
                 going on: the idempotent producer of franz-go, in full those of librdkafka and Java, too, has each record there once and in \
                 order, and nothing fails (B015)",
        seconds: 120,
        run: lost_acks,
    },
    Case {
        name: "holes-on-replicas",
        proves: "a copy that was made across the holes of a compacted log, and fills them, and the log that it was made of: librdkafka and Java read \
                 exactly the newest record of each key to the end, from the leader, and from that copy when it leads (B058)",
        seconds: 120,
        run: holes,
    },
];

/// The topic of a client's case whose answers get lost.
struct LosesAnswers<'a> {
    cluster: &'a mut Cluster,
    topic: String,
    kills: usize,
}

impl Host for LosesAnswers<'_> {
    fn bootstrap(&self) -> String {
        let first = self.cluster.brokers().next();
        first.map_or_else(String::new, |broker| broker.told().to_string())
    }

    fn make_ready(&mut self) -> Result<()> {
        self.cluster.all_run()
    }

    fn obey(&mut self, ask: Ask) -> Result<Answer> {
        let cluster = &mut *self.cluster;
        let mut answer = Answer::done();
        match ask {
            Ask::Lossy => {
                // Clients make their topics with one replica.
                let described = wait::until("the client's topic to be known", AGREE, || {
                    Ok(cluster.described(1, &self.topic).ok().filter(|all| !all.is_empty()))
                })?;
                if described.iter().any(|one| one.replicas.len() < 3) {
                    cluster.broker(1)?.connect()?.reassign(&self.topic, 1, Some(&ALL))?;
                    cluster.wait_in_sync(1, &self.topic, &ALL)?;
                }
                answer.address = Some(self.bootstrap());
                answer.lost = Some(self.cluster.lost_answers());
            }
            Ask::Kill => {
                self.kills += 1;
                let (at, _) = cluster.wait_leader(1, &self.topic, 0, None)?;
                cluster.broker(at)?.kill();
                cluster.wait_leader(at % 3 + 1, &self.topic, 0, Some(at))?;
                cluster.broker(at)?.start()?;
                cluster.wait_alive(&ALL)?;
            }
            Ask::Restart | Ask::Stop | Ask::Start | Ask::Compacted => bail!("{ask:?} is not for this case"),
        }
        Ok(answer)
    }
}

fn lost_acks(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().lossy().start()?;
    let mut told = Vec::new();
    let clients = ["franz-go", "rdkafka", "java-4"];
    for client in &clients[..stage.rounds(1, clients.len())] {
        let before = cluster.lost_answers();
        let mut host =
            LosesAnswers { cluster: &mut cluster, topic: format!("{client}-1-lost-acks"), kills: 0 };
        stage.client_case(client, "lost-acks", &format!("{client}-"), &mut host)?;
        equal("kills", host.kills, 3)?;
        told.push(format!("{client} {}", cluster.lost_answers() - before));
        all_in_sync(&mut cluster, &[&format!("{client}-1-lost-acks")])?;
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, u64::try_from(told.len())?)?;
    Ok(format!("answers lost: {}; {compared}", told.join(", ")))
}

/// A compacted topic that is there already.
struct HasHoles<'a> {
    cluster: &'a Cluster,
    survivors: &'a str,
}

impl Host for HasHoles<'_> {
    fn bootstrap(&self) -> String {
        self.cluster.bootstrap()
    }

    fn make_ready(&mut self) -> Result<()> {
        Ok(())
    }

    fn obey(&mut self, ask: Ask) -> Result<Answer> {
        match ask {
            Ask::Compacted => {
                let mut answer = Answer::done();
                answer.topic = Some("t".to_owned());
                answer.survivors = Some(self.survivors.to_owned());
                Ok(answer)
            }
            Ask::Restart | Ask::Kill | Ask::Stop | Ask::Start | Ask::Lossy => {
                bail!("{ask:?} is not for this case")
            }
        }
    }
}

fn holes(stage: &Stage) -> Result<String> {
    // Whoever looks after logs does so often, so that nobody waits for it.
    let mut cluster = stage.plan().set("log.cleaner.backoff.ms", "200").start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let mut to = served(&mut cluster, 1)?;
    for (name, value) in compacted::settings() {
        equal(name, to.alter("t", name, 0, Some(value))?, 0)?;
    }
    // It gets its copy when the holes are there, by frames that lead across them.
    cluster.broker(3)?.kill();
    cluster.wait_alive_as_seen_by(&[1, 2], &[1, 2])?;
    let mut writer = Writer::new("t");
    compacted::write(&mut to, &mut writer)?;
    let survivors = writer.wait_compacted(&mut to)?;
    cluster.broker(3)?.start()?;
    cluster.wait_alive(&ALL)?;
    all_in_sync(&mut cluster, &["t"])?;
    let words = compacted::in_words(&survivors);
    let read = |cluster: &Cluster, when: &str| -> Result<()> {
        for client in ["rdkafka", "java-4"] {
            let mut host = HasHoles { cluster, survivors: &words };
            stage
                .client_case(client, "compacted", &format!("{client}-"), &mut host)
                .context(when.to_owned())?;
        }
        Ok(())
    };
    equal("who leads", cluster.wait_leader(2, "t", 0, None)?.0, 1)?;
    read(&cluster, "from the log that was compacted")?;
    cluster.broker(2)?.kill();
    cluster.broker(1)?.kill();
    equal("who leads", cluster.wait_leader(3, "t", 0, Some(1))?.0, 3)?;
    for back in [1, 2] {
        cluster.broker(back)?.start()?;
    }
    cluster.wait_alive(&ALL)?;
    all_in_sync(&mut cluster, &["t"])?;
    equal("who leads", cluster.wait_leader(1, "t", 0, None)?.0, 3)?;
    let found = served(&mut cluster, 3)?.read_keyed("t", 0)?;
    holds("its copy has what was left", found == survivors)?;
    read(&cluster, "from the copy that was made across holes")?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!("{} records are left; {compared}", survivors.len()))
}
