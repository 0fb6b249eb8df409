// Ranks within one process, for tests and for a process that is alone.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace halfbyte {

// `size` communicators, each for a thread of its own; one alone needs no other thread. Destroying
// one that has not left is what a dying process is to real ranks: the others' operations fail.
std::vector<std::unique_ptr<Communicator>> InProcessRanks(int size);

}  // namespace halfbyte
