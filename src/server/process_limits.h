// What the system lets this process have (ulimit, cgroups), asked before it is needed: one sentence
// at start instead of an accident later.
#pragma once

#include "base/result.h"
#include "http/http_server.h"

namespace halfbyte {

// Raises the limit of open files as far as it goes, and lowers http.max_connections, with a
// warning, to what it allows: each connection is a file. Error: not even a few.
Status FitToOpenFiles(HttpOptions& http);

// Error: that many threads more cannot be started.
Status CheckThreads(int count);

}  // namespace halfbyte
