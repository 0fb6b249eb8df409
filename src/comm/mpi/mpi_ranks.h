// Ranks as processes that `mpirun` (Open MPI) or a PMIx launcher started.
#pragma once

#include <memory>

#include "base/result.h"
#include "comm/communicator.h"

namespace halfbyte {

// The ranks that the launcher started, or this process alone if it was started by itself (MPI is
// not initialized then). Once per process, while no other thread uses MPI. Error: started by
// mpirun, but built without MPI.
//
// The connection ends with the communicator. Without Leave, or after the connection broke, it is
// aborted: the launcher then ends all ranks, as it does when a process dies.
Result<std::unique_ptr<Communicator>> ConnectRanks();

}  // namespace halfbyte
