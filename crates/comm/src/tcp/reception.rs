//! `Reception`: rank 0 as it listens for the others. Nobody waits for anybody: every connection is looked at in turn, has a
//! time limit of its own, and there are at most [`PENDING`] that have not proven who they are.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::hello::{ANSWER, CHALLENGE, Claim, NO, Said, YES, challenge, judge, may_be};
use super::notice::Notice;
use super::rendezvous::{Connection, PATIENCE, Rendezvous};
use super::secret::{LocalSecret, random};
use super::{Secret, TcpError};

/// Most connections that are looked at before they have proven who they are; then the one that came first goes.
const PENDING: usize = 256;
/// How often rank 0 looks for connections, and for words where there are some.
const PACE: Duration = Duration::from_millis(5);
const PACE_OF_HELLOS: Duration = Duration::from_millis(1);
/// How often those that came hear who is waited for, where that has changed.
const NEWS: Duration = Duration::from_millis(200);
/// After how long rank 0 says for whom it waits.
const TOLD_AFTER: Duration = Duration::from_secs(60);

/// A connection that has not proven who it is.
struct Pending {
    stream: TcpStream,
    came: Instant,
    challenge: [u8; CHALLENGE],
    answer: [u8; ANSWER],
    heard: usize,
}

/// What has become of a pending connection.
enum Heard {
    NotAll,
    Nothing,
    Rank(Claim, Said),
}

/// Rank 0, listening.
pub(super) struct Reception<'a> {
    meeting: &'a Rendezvous,
    listener: TcpListener,
    secret: Secret,
    /// The file that the others read the secret from.
    _local: Option<LocalSecret>,
    began: Instant,
    pending: VecDeque<Pending>,
    /// The other ranks, from 1 on.
    came: Vec<Option<Connection>>,
    strangers: u64,
    /// When those that came were told of whom last.
    news: (Instant, Vec<usize>),
    told: bool,
}

impl<'a> Reception<'a> {
    pub(super) fn open(meeting: &'a Rendezvous) -> Result<Self, TcpError> {
        let failed = meeting.failed("listen on");
        let addresses = meeting.addresses().map_err(&failed)?;
        meeting.check_reach(&addresses)?;
        let listener = TcpListener::bind(&addresses[..]).map_err(&failed)?;
        listener.set_nonblocking(true).map_err(&failed)?;
        let (local, secret) = match &meeting.secret {
            Some(secret) => (None, secret.clone()),
            None => {
                let made = LocalSecret::make(meeting.port);
                let (local, secret) = made.map_err(|error| meeting.secret_failed(error))?;
                (Some(local), secret)
            }
        };
        let began = Instant::now();
        Ok(Self {
            meeting,
            listener,
            secret,
            _local: local,
            began,
            pending: VecDeque::new(),
            came: (1..meeting.size).map(|_| None).collect(),
            strangers: 0,
            news: (began, Vec::new()),
            told: false,
        })
    }

    /// One connection per other rank, in rank order.
    pub(super) fn receive(mut self) -> Result<Vec<Connection>, TcpError> {
        loop {
            self.accept();
            self.hear()?;
            self.watch()?;
            let missing = self.missing();
            if missing.is_empty() {
                return self.welcome();
            }
            if self.began.elapsed() >= self.meeting.deadline {
                self.tell(&Notice::Missing(missing.clone()));
                return Err(self.meeting.missing(missing, self.strangers + self.pending.len() as u64));
            }
            self.spread(missing);
            std::thread::sleep(if self.pending.is_empty() { PACE } else { PACE_OF_HELLOS });
        }
    }

    fn missing(&self) -> Vec<usize> {
        let absent = |(place, one): (usize, &Option<Connection>)| one.is_none().then_some(place + 1);
        self.came.iter().enumerate().filter_map(absent).collect()
    }

    /// Takes in who knocks.
    fn accept(&mut self) {
        // So many that those who come meanwhile are not waited for.
        for _ in 0..PENDING {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Ok(pending) = Pending::greet(stream) {
                        self.pending.push_back(pending);
                    }
                    if self.pending.len() > PENDING {
                        self.pending.pop_front();
                        self.strangers += 1;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // One that went again (ECONNABORTED) costs nothing; where there is no room for more (EMFILE), those
                    // that have proven nothing make some.
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        self.strangers += self.pending.len() as u64;
                        self.pending.clear();
                    }
                    return;
                }
            }
        }
    }

    /// Hears what pending connections say.
    fn hear(&mut self) -> Result<(), TcpError> {
        for _ in 0..self.pending.len() {
            let Some(mut one) = self.pending.pop_front() else { break };
            match one.hear(&self.secret) {
                Heard::NotAll if one.came.elapsed() < PATIENCE => self.pending.push_back(one),
                Heard::NotAll | Heard::Nothing => self.strangers += 1,
                Heard::Rank(claim, said) => self.admit(one.stream, claim, said)?,
            }
        }
        Ok(())
    }

    /// A rank of this job has come.
    fn admit(&mut self, mut stream: TcpStream, claim: Claim, said: Said) -> Result<(), TcpError> {
        let size = self.meeting.size;
        let proof = [&YES[..], &said.proof()].concat();
        // As little always finds room in a connection that is new.
        if stream.write_all(&proof).is_err() {
            return Ok(());
        }
        let mut connection = Connection { stream, session: said.at_rank_0() };
        let rank = claim.rank as usize;
        let place = rank.checked_sub(1).and_then(|place| self.came.get_mut(place));
        let got = match place {
            _ if claim.size as usize != size => format!("it is rank {rank} of {}", claim.size),
            _ if claim.encrypts != self.meeting.encrypt => {
                let way = |encrypts| if encrypts { "encrypts what it says" } else { "encrypts nothing" };
                format!(
                    "it is rank {rank}, which {}; rank 0 {}",
                    way(claim.encrypts),
                    way(self.meeting.encrypt)
                )
            }
            Some(place @ None) => {
                *place = Some(connection);
                return Ok(());
            }
            Some(_) => format!("it is rank {rank}, which is here already"),
            None => format!("it is rank {rank} of {size}"),
        };
        let expected = match claim.encrypts == self.meeting.encrypt {
            true => format!("a rank from 1 to {} of {size} that is not here yet", size - 1),
            false => "ddp_encryption, or BURNISH_DDP_ENCRYPTION, to be the same on all ranks".to_owned(),
        };
        let notice = Notice::Contradiction(got.clone(), expected.clone());
        let _ = connection.stream.write_all(&notice.sealed(&mut connection.session.says));
        self.tell(&notice);
        Err(TcpError::Contradiction { address: self.meeting.place(), got, expected })
    }

    /// Looks whether one of those that came has gone.
    fn watch(&mut self) -> Result<(), TcpError> {
        let gone = |connection: &Connection| match connection.stream.peek(&mut [0]) {
            // It has nothing to say before it is welcome.
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        match self.came.iter().position(|one| one.as_ref().is_some_and(gone)) {
            None => Ok(()),
            Some(place) => {
                let missing = self.missing();
                self.tell(&Notice::Ended([&[place + 1], &missing[..]].concat()));
                Err(self.meeting.ended(place + 1, missing))
            }
        }
    }

    /// Says now and then who is waited for.
    fn spread(&mut self, missing: Vec<usize>) {
        if self.news.0.elapsed() > NEWS && self.news.1 != missing {
            self.tell(&Notice::Waiting(missing.clone()));
            self.news = (Instant::now(), missing.clone());
        }
        if !self.told && self.began.elapsed() > TOLD_AFTER {
            self.told = true;
            let shown: Vec<usize> = missing.into_iter().take(16).collect();
            let _ = writeln!(
                io::stderr(),
                "transport tcp: rank 0 waits at `{}` for ranks {shown:?}; {} connections of others were turned away",
                self.meeting.place(),
                self.strangers
            );
        }
    }

    /// Says something to all that came. Who cannot be told has gone, which [`Self::watch`] finds.
    fn tell(&mut self, notice: &Notice) {
        for connection in self.came.iter_mut().flatten() {
            let bytes = notice.sealed(&mut connection.session.says);
            if connection.stream.write_all(&bytes).is_err() {
                // Half a notice would not be understood.
                let _ = connection.stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn welcome(mut self) -> Result<Vec<Connection>, TcpError> {
        self.tell(&Notice::Welcome);
        let failed = self.meeting.failed("keep a connection on");
        let (all, encrypt) = (self.came.into_iter().flatten(), self.meeting.encrypt);
        all.map(|connection| connection.settled(encrypt).map_err(&failed)).collect()
    }
}

impl Pending {
    /// Says the first words to who came.
    fn greet(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let challenge = challenge(&random()?);
        stream.write_all(&challenge)?;
        Ok(Self { stream, came: Instant::now(), challenge, answer: [0; ANSWER], heard: 0 })
    }

    /// Takes in what has come of the answer.
    fn hear(&mut self, secret: &Secret) -> Heard {
        while self.heard < ANSWER {
            match self.stream.read(&mut self.answer[self.heard..]) {
                Ok(0) => return Heard::Nothing,
                Ok(more) => self.heard += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::NotAll,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::Nothing,
            }
            if !may_be(&self.answer[..self.heard]) {
                return Heard::Nothing;
            }
        }
        match judge(secret, &self.challenge, &self.answer) {
            Some((claim, said)) => Heard::Rank(claim, said),
            None => {
                // A rank with another secret learns why it is not heard; a stranger learns nothing.
                let _ = self.stream.write_all(&NO);
                Heard::Nothing
            }
        }
    }
}
