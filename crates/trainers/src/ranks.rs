//! The ranks of a run: threads of this process, or processes of an MPI job.

use std::time::Duration;

use burnish_comm::{CommError, Group, Mesh, World, local, mpi, tcp};
use burnish_config::{RankOptions, Transport};
use burnish_tp::Tp;

use crate::TrainError;

/// Who trains together.
#[derive(Debug)]
pub enum Ranks {
    /// This many threads of this process.
    Threads {
        /// How many.
        ranks: usize,
        /// How long one waits for another.
        deadline: Duration,
    },
    /// This process is one rank of a job.
    Process(World),
}

/// Variables of launchers under which processes find each other by MPI: mpirun, and srun with a PMI.
const MPI_SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

impl Ranks {
    /// The ranks that options and the environment ask for. Joins the job of a launcher when there is one.
    ///
    /// # Errors
    /// If the job cannot be joined, or a launcher started several processes that are told not to talk.
    pub fn of(options: &RankOptions) -> Result<Self, TrainError> {
        let deadline = Duration::from_secs_f64(options.ddp_timeout);
        let several = |name: &&str| size_in(name).is_some_and(|size| size > 1);
        let transport = match options.transport {
            Transport::Auto if MPI_SIZES.iter().any(several) || std::env::var("PMIX_RANK").is_ok() => {
                Transport::Mpi
            }
            Transport::Auto if several(&"WORLD_SIZE") => Transport::Tcp,
            Transport::Auto => Transport::Local,
            chosen => chosen,
        };
        let world = match transport {
            Transport::Mpi => mpi::world()?,
            Transport::Tcp => tcp::world()?,
            // Several processes that each train alone would write over each other.
            _ => match MPI_SIZES.iter().chain(&["WORLD_SIZE"]).find(|name| several(name)) {
                Some(variable) => {
                    return Err(TrainError::NoTransport { variable, size: size_in(variable).unwrap_or(0) });
                }
                None => return Ok(Self::Threads { ranks: options.nproc, deadline }),
            },
        };
        if options.nproc > 1 && options.nproc != world.size() {
            return Err(TrainError::WorldSize { nproc: options.nproc, world: world.size() });
        }
        Ok(Self::Process(world.with_deadline(deadline)))
    }

    /// A run on one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self::threads(1)
    }

    /// A run on `ranks` threads.
    #[must_use]
    pub fn threads(ranks: usize) -> Self {
        Self::Threads { ranks, deadline: burnish_comm::DEADLINE }
    }

    /// How many they are.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Threads { ranks, .. } => *ranks,
            Self::Process(world) => world.size(),
        }
    }

    /// Whether this process holds the rank that speaks and writes for all.
    #[must_use]
    pub fn lead(&self) -> bool {
        match self {
            Self::Threads { .. } => true,
            Self::Process(world) => world.rank() == 0,
        }
    }

    /// Runs `program` on every rank of this process and gives the first one's result. A rank that fails tells the
    /// others, so that all stop; the error is that of the rank where it began.
    ///
    /// # Errors
    /// Whatever `program` returns; a panic of a rank.
    pub fn run<T: Send>(
        &self,
        program: impl Fn(&World) -> Result<T, TrainError> + Sync,
    ) -> Result<T, TrainError> {
        let told = |world: World| {
            let result = program(&world);
            if let Err(error) = &result
                && !error.came_from_another_rank()
            {
                world.fail(&error.to_string());
            }
            result
        };
        match self {
            Self::Process(world) => told(world.clone()),
            Self::Threads { ranks: 1, .. } => told(World::alone()),
            Self::Threads { ranks, deadline } => {
                let worlds = World::local(*ranks).into_iter().map(|w| w.with_deadline(*deadline)).collect();
                first(local::run_worlds(worlds, told))
            }
        }
    }
}

/// This rank among those that take other rows, and among the `tp_size` that share each layer with it.
///
/// # Errors
/// If the ranks do not make whole groups.
pub(crate) fn axes(world: &World, tp_size: usize) -> Result<(Group, Tp), TrainError> {
    if !world.size().is_multiple_of(tp_size) {
        return Err(TrainError::TpSize { tp_size, world: world.size() });
    }
    let mesh = Mesh::new(world, &[("dp", world.size() / tp_size), ("tp", tp_size)])?;
    Ok((mesh.group("dp")?, Tp::new(&mesh.group("tp")?)))
}

fn size_in(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The first rank's result, or the error that began it.
fn first<T>(results: Vec<Result<Result<T, TrainError>, CommError>>) -> Result<T, TrainError> {
    let mut kept = None;
    let mut failed: Option<TrainError> = None;
    for result in results {
        match result.map_err(TrainError::from).and_then(|result| result) {
            Ok(value) => kept = kept.or(Some(value)),
            Err(error) => {
                if failed.as_ref().is_none_or(TrainError::came_from_another_rank) {
                    failed = Some(error);
                }
            }
        }
    }
    match (failed, kept) {
        (None, Some(value)) => Ok(value),
        (Some(error), _) => Err(error),
        (None, None) => unreachable!("invariant: there is at least one rank"),
    }
}
