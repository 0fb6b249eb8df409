// What the system lets this process have (ulimit, cgroups), asked before it is needed: one sentence
// at start instead of an accident later.
#pragma once

#include "base/available_memory.h"
#include "base/result.h"
#include "http/http_server.h"

namespace halfbyte {

// Raises the limit of open files as far as it goes, and lowers http.max_connections, with a
// warning, to what it allows: each connection is a file. Error: not even a few.
Status FitToOpenFiles(HttpOptions& http);

// Lowers the limits of bodies, with a warning, so that requests take no more than a quarter of
// what memory there is. What they take at most then, beside the model.
int64_t FitToMemory(HttpOptions& http, const AvailableMemory& available);

// Error: that many threads more cannot be started.
Status CheckThreads(int count);

}  // namespace halfbyte
