//! `World`: one rank's handle on all ranks of a job.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use burnish_core::{Coded, ErrorCode};

use crate::group::Core;
use crate::launch::{Launch, LaunchError, Launcher};
use crate::tcp::{self, TcpError};
use crate::transport::{Link, Members, PointToPoint, Transport};
use crate::{CommError, Group, local};

/// How long a call waits for the other ranks unless told otherwise: ten minutes, as NCCL's users are used to.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Why a process is not in its job.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A variable of the launcher is not what it must be.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The ranks did not meet over TCP.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// MPI is not here, or refused.
    #[cfg(unix)]
    #[error(transparent)]
    Mpi(#[from] crate::mpi::MpiError),
    /// MPI is not for this system.
    #[cfg(not(unix))]
    #[error(
        "{variable} says that MPI started this process, but ranks meet over MPI on Unix only; use torchrun's variables"
    )]
    NoMpi {
        /// The variable.
        variable: &'static str,
    },
}

/// All ranks, as one of them sees them. Cheap to clone.
#[derive(Clone)]
pub struct World {
    core: Arc<Core>,
    deadline: Duration,
}

impl World {
    /// The world of a rank over its transport.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { core: Arc::new(Core::new(transport, false)), deadline: DEADLINE }
    }

    /// The world of a rank over a link that moves messages.
    #[must_use]
    pub fn over(link: Box<dyn Link>) -> Self {
        Self::new(Arc::new(PointToPoint::new(link)))
    }

    /// The job that this process was started in: by Open MPI over [`mpi`](crate::mpi), by torchrun or Slurm over
    /// [`tcp`](crate::tcp); a world of one rank where no launcher says that there are others ([`launch`](crate::launch)
    /// has the variables). With a GPU for each rank `nccl::world()` (feature `cuda`) meets likewise.
    ///
    /// # Collectives
    /// Every process of the job calls it, early: it waits for the others.
    ///
    /// # Errors
    /// [`JoinError`], if a variable is not what it must be or the ranks do not meet.
    ///
    /// ```
    /// use burnish_comm::{Bucket, Reduction, World};
    ///
    /// let world = World::from_env()?;
    /// let ones = world.group().all_reduce(Bucket::new(vec![1.0_f32]), Reduction::Sum, "ones").wait()?;
    /// assert_eq!(ones.into_vec(), [world.size() as f32]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_env() -> Result<Self, JoinError> {
        match Launch::all_from_env()?.first() {
            None => Ok(Self::alone()),
            #[cfg(unix)]
            Some(Launch { launcher: Launcher::Mpi, .. }) => Ok(crate::mpi::world()?),
            #[cfg(not(unix))]
            Some(Launch { launcher: Launcher::Mpi, variable, .. }) => Err(JoinError::NoMpi { variable }),
            Some(_) => Ok(tcp::world()?),
        }
    }

    /// A world of one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self::over(Box::new(local::LocalLink::alone()))
    }

    /// The worlds of `ranks` ranks in this process, one for each thread.
    #[must_use]
    pub fn local(ranks: usize) -> Vec<Self> {
        local::links(ranks).into_iter().map(|link| Self::over(Box::new(link))).collect()
    }

    /// The same world with another deadline. State it before groups are made.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The same world with a checksum on everything that travels; damage is then an error that names sender and call.
    /// To be used in place of the world it was made from, before any call, on all ranks alike.
    #[must_use]
    pub fn with_checksums(self) -> Self {
        let core = Core::new(Arc::clone(&self.core.transport), true);
        Self { core: Arc::new(core), deadline: self.deadline }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.core.transport.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.core.transport.size()
    }

    /// How long a call may wait for the other ranks.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The transport's name.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.core.transport.name()
    }

    /// Whether sums are taken in the order of the ranks, so that they are the same bits over every transport that says so.
    #[must_use]
    pub fn in_rank_order(&self) -> bool {
        self.core.transport.in_rank_order()
    }

    /// The group of all ranks, axis `world`.
    #[must_use]
    pub fn group(&self) -> Group {
        self.group_of("world", (0..self.size()).collect(), self.rank())
    }

    pub(crate) fn group_of(&self, axis: &str, ranks: Vec<usize>, me: usize) -> Group {
        let members = Arc::new(Members { axis: Arc::from(axis), ranks, me });
        Group::of(Arc::clone(&self.core), members, "", self.deadline)
    }

    /// Tells all other ranks that this rank has failed and why: none waits for it any longer. To be called where a
    /// rank's own work ends in an error. Later calls of this rank are refused.
    pub fn fail(&self, reason: &str) {
        self.core.transport.fail(CommError::Stopped { rank: self.rank(), reason: reason.to_owned() });
    }

    pub(crate) fn fail_with(&self, error: CommError) {
        self.core.transport.fail(error);
    }

    /// The first error of this rank's communication, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<CommError>> {
        self.core.transport.failure()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {} of {}, {})", self.rank(), self.size(), self.transport())
    }
}

impl Coded for JoinError {
    fn code(&self) -> ErrorCode {
        match self {
            #[cfg(not(unix))]
            Self::NoMpi { .. } => ErrorCode::NoTransport,
            Self::Launch(error) => error.code(),
            Self::Tcp(error) => error.code(),
            #[cfg(unix)]
            Self::Mpi(error) => error.code(),
        }
    }
}
