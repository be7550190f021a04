//! The ranks of a run: threads of this process, or processes that a launcher started.

pub(crate) mod agreement;
pub(crate) mod cores;
pub(crate) mod device_failure;
pub(crate) mod devices;

use std::time::Duration;

use burn::tensor::Device;
use burnish_comm::launch::{Launch, Launcher, encryption};
use burnish_comm::tcp::{Rendezvous, Secret, TcpError};
use burnish_comm::{CommError, Group, Mesh, World, local, mpi, tcp};
use burnish_config::groups::RankOptions;
use burnish_config::values::Transport;
use burnish_device::{Cores, DeviceKind};
use burnish_models::{ExpertSharding, ModelAxes};
use burnish_tp::Tp;

use crate::TrainError;
use crate::ranks::cores::on_cores;
use crate::ranks::devices::Devices;

/// Most ranks in one process: each is a thread, with gradients and optimizer state of its own.
const MOST_THREADS: usize = 256;

/// Who trains together.
#[derive(Debug)]
pub enum Ranks {
    /// This many threads of this process.
    Threads {
        /// How many.
        ranks: usize,
        /// How long one waits for another.
        deadline: Duration,
        /// The cores that each keeps to; none where all share the process's threads.
        cores: Vec<Cores>,
    },
    /// Threads of this process with a GPU each, in the order of the devices.
    Gpus(Vec<World>),
    /// This process is one rank of a job.
    Process(World),
}

impl Ranks {
    /// The ranks that options and the environment ask for, computing on devices of `kind`. Joins the job of a launcher when
    /// there is one.
    ///
    /// # Errors
    /// If the job cannot be joined, a launcher started several processes that are told not to talk, or NCCL is asked for and not
    /// here.
    pub fn of(options: &RankOptions, kind: DeviceKind) -> Result<Self, TrainError> {
        let deadline = deadline(options);
        let launches = Launch::all_from_env()?;
        let by_mpi = launches.iter().any(|launch| launch.launcher == Launcher::Mpi);
        // Processes that find each other by an address.
        let met = launches.iter().any(|launch| launch.launcher != Launcher::Mpi);
        let gpus = kind == DeviceKind::Cuda;
        let transport = match options.transport {
            Transport::Auto if by_mpi => Transport::Mpi,
            Transport::Auto if met => {
                if gpus {
                    Transport::Nccl
                } else {
                    Transport::Tcp
                }
            }
            // Threads that share a GPU need no NCCL, which refuses two ranks on one.
            Transport::Auto if gpus && options.nproc > 1 && burnish_device::count(kind)? >= options.nproc => {
                Transport::Nccl
            }
            Transport::Auto => Transport::Local,
            chosen => chosen,
        };
        let trusts = transport == Transport::Mpi || transport == Transport::Nccl && met;
        if trusts && (options.ddp_encryption || encryption()?) {
            return Err(TrainError::NotEncrypted { transport });
        }
        let world = match transport {
            Transport::Mpi => mpi::world()?,
            Transport::Tcp => tcp::meet(&meeting(options)?)?,
            Transport::Nccl if !gpus => return Err(TrainError::NcclDevice { kind }),
            Transport::Nccl if met => gpu::meet(&meeting(options)?)?,
            Transport::Nccl => {
                let worlds = gpu::worlds(options.nproc)?.into_iter();
                return Ok(Self::Gpus(worlds.map(|world| world.with_deadline(deadline)).collect()));
            }
            // Several processes that each train alone would write over each other.
            _ => match launches.iter().find_map(|launch| Some((launch.variable, launch.size?))) {
                Some((variable, size)) => return Err(TrainError::NoTransport { variable, size }),
                None if options.nproc > MOST_THREADS => {
                    return Err(TrainError::TooManyThreads { nproc: options.nproc, most: MOST_THREADS });
                }
                None => return Ok(Self::Threads { ranks: options.nproc, deadline, cores: Vec::new() }),
            },
        };
        if options.nproc > 1 && options.nproc != world.size() {
            return Err(TrainError::WorldSize { nproc: options.nproc, world: world.size() });
        }
        Ok(Self::Process(world.with_deadline(deadline)))
    }

    /// The same ranks, of which those that are threads of this process share out its `cores`, if it keeps to some
    /// ([`cores_of_process`](crate::cores_of_process)).
    ///
    /// # Errors
    /// If they are fewer than the ranks.
    pub fn keeping_to(mut self, all: Option<&Cores>) -> Result<Self, TrainError> {
        if let (Self::Threads { ranks, cores, .. }, Some(all)) = (&mut self, all)
            && *ranks > 1
        {
            let own = (0..*ranks).map(|rank| all.of_rank(rank, *ranks));
            *cores = own.collect::<Result<_, _>>()?;
        }
        Ok(self)
    }

    /// A run on one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self::threads(1)
    }

    /// A run on `ranks` threads.
    #[must_use]
    pub fn threads(ranks: usize) -> Self {
        Self::Threads { ranks, deadline: burnish_comm::DEADLINE, cores: Vec::new() }
    }

    /// What the ranks of this process compute on: `first`, or a GPU each.
    pub(crate) fn devices(&self, first: &Device) -> Result<Devices, TrainError> {
        let Self::Gpus(worlds) = self else { return Ok(Devices::one(first)) };
        let open = |ordinal| burnish_device::open(DeviceKind::Cuda, ordinal);
        Ok(Devices::each((0..worlds.len()).map(open).collect::<Result<_, _>>()?))
    }

    /// How many they are.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Threads { ranks, .. } => *ranks,
            Self::Gpus(worlds) => worlds.len(),
            Self::Process(world) => world.size(),
        }
    }

    /// Whether this process holds the rank that speaks and writes for all.
    #[must_use]
    pub fn lead(&self) -> bool {
        match self {
            Self::Threads { .. } | Self::Gpus(_) => true,
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
        let run_and_report = |world: World| {
            let result = program(&world);
            if let Err(error) = &result
                && !error.came_from_another_rank()
            {
                world.fail(&error.to_string());
            }
            result
        };
        match self {
            Self::Process(world) => run_and_report(world.clone()),
            Self::Gpus(worlds) => first(local::run_worlds(worlds.clone(), run_and_report)),
            Self::Threads { ranks: 1, .. } => run_and_report(World::alone()),
            Self::Threads { ranks, deadline, cores } => {
                let worlds = World::local(*ranks).into_iter().map(|w| w.with_deadline(*deadline)).collect();
                let run = |world: World| match cores.get(world.rank()) {
                    None => run_and_report(world),
                    Some(cores) => on_cores(cores, || run_and_report(world)),
                };
                first(local::run_worlds(worlds, run))
            }
        }
    }
}

/// How long a rank waits for the others: to meet, and in every collective.
fn deadline(options: &RankOptions) -> Duration {
    // Longer than any run for whoever says so by a number that no duration holds.
    Duration::try_from_secs_f64(options.ddp_timeout).unwrap_or(Duration::MAX).min(LONGEST)
}

/// A year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where this process meets the others, and what they know each other by.
fn meeting(options: &RankOptions) -> Result<Rendezvous, TrainError> {
    let from_env = Rendezvous::from_env()?;
    let encrypt = options.ddp_encryption || from_env.encrypt;
    let meeting = Rendezvous { deadline: deadline(options), encrypt, ..from_env };
    match &options.ddp_secret_file {
        None => Ok(meeting),
        Some(path) => {
            let secret = Secret::from_file(path).map_err(TcpError::from)?;
            Ok(Rendezvous { secret: Some(secret), ..meeting })
        }
    }
}

/// NCCL, where this build has it.
#[cfg(feature = "cuda")]
mod gpu {
    use burnish_comm::tcp::Rendezvous;
    use burnish_comm::{World, nccl};
    use burnish_device::cuda::Installation;

    use crate::TrainError;

    pub(super) fn meet(meeting: &Rendezvous) -> Result<World, TrainError> {
        Installation::find().load_nccl();
        Ok(nccl::meet(meeting)?)
    }

    pub(super) fn worlds(ranks: usize) -> Result<Vec<World>, TrainError> {
        Installation::find().load_nccl();
        Ok(nccl::worlds(ranks)?)
    }
}

/// NCCL, where this build has it.
#[cfg(not(feature = "cuda"))]
mod gpu {
    use burnish_comm::World;
    use burnish_comm::tcp::Rendezvous;

    use crate::TrainError;

    pub(super) fn meet(_: &Rendezvous) -> Result<World, TrainError> {
        Err(TrainError::NoNccl)
    }

    pub(super) fn worlds(_: usize) -> Result<Vec<World>, TrainError> {
        Err(TrainError::NoNccl)
    }
}

/// A rank's groups.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    /// The ranks that take other rows.
    pub(crate) data: Group,
    /// Of those, the ones that have the same parts of the model: what optimizer state, gradients and parameters are dealt to.
    pub(crate) dp: Group,
    /// The ranks that have one model between them.
    pub(crate) model: ModelAxes,
}

impl Axes {
    /// Of ranks as `options` divide them.
    ///
    /// # Errors
    /// If the ranks do not make whole groups.
    pub(crate) fn new(world: &World, options: &RankOptions) -> Result<Self, TrainError> {
        let (ranks, sharing) = (world.size(), options.model_parallel_size());
        options.whole_groups(ranks).map_err(|(key, size)| TrainError::ModelParallelSize {
            key,
            size,
            world: ranks,
        })?;
        let RankOptions { tp_size, ep_size, .. } = *options;
        if ep_size == 1 {
            let mesh = Mesh::new(world, &[("dp", ranks / tp_size), ("tp", tp_size)])?;
            let (dp, all) = (mesh.group("dp")?, Tp::new(&mesh.group("tp")?));
            return Ok(Self { data: dp.clone(), dp, model: ModelAxes { tp: all.clone(), ep: None, all } });
        }
        let rows = Mesh::new(world, &[("data", ranks / tp_size), ("tp", tp_size)])?;
        let of_model = Mesh::new(world, &[("dp", ranks / sharing), ("model", sharing)])?;
        let mesh = Mesh::new(world, &[("dp", ranks / sharing), ("ep", ep_size), ("tp", tp_size)])?;
        let all = Tp::new(&of_model.group("model")?);
        let (tp, ep) = (all.along(&mesh.group("tp")?), Some(all.along(&mesh.group("ep")?)));
        Ok(Self { data: rows.group("data")?, dp: mesh.group("dp")?, model: ModelAxes { all, tp, ep } })
    }
}

/// How these ranks have the experts of mixtures.
pub(crate) fn expert_sharding(options: &RankOptions) -> ExpertSharding {
    match options.enable_expert_parallel {
        _ if options.ep_size > 1 => ExpertSharding::Exchanged,
        true => ExpertSharding::Whole,
        false => ExpertSharding::Parts,
    }
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
