//! Ranks that keep to cores of their own.

use burnish_comm::launch::{Launch, local_place};
use burnish_config::groups::RankOptions;
use burnish_device::Cores;

use crate::TrainError;

/// The cores that this process is to keep to, where options say so: its share of the machine's, to which the calling thread
/// and those that it starts are kept from now on.
///
/// # Errors
/// If there are too few, the list names others, or a launcher does not say which of the processes here this one is.
pub fn cores_of_process(options: &RankOptions) -> Result<Option<Cores>, TrainError> {
    if !options.bind_cores_to_rank {
        return Ok(None);
    }
    let all = match &options.bind_core_list {
        Some(list) => Cores::listed(list)?,
        None => Cores::allowed()?,
    };
    let own = match local_place()? {
        Some((rank, size)) => all.of_rank(rank, size)?,
        None => match Launch::all_from_env()?.first() {
            Some(launch) => return Err(TrainError::NoLocalRank { variable: launch.variable }),
            None => all,
        },
    };
    own.bind()?;
    Ok(Some(own))
}

/// Runs a rank's `work` on threads of its own, one for each of its cores.
///
/// # Errors
/// If the threads cannot be started or kept to their cores; those of `work`.
pub(super) fn on_cores<T: Send>(
    cores: &Cores,
    work: impl FnOnce() -> Result<T, TrainError> + Send,
) -> Result<T, TrainError> {
    cores.bind()?;
    let own = cores.clone();
    // That a thread stays where the system puts it among these cores costs time alone.
    let start = move |thread| drop(own.bind_worker(thread));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cores.count()).start_handler(start).build();
    pool.map_err(|error| TrainError::RankThreads { text: error.to_string() })?.install(work)
}
