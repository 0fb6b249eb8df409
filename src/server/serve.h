// `halfbyte serve` from the first byte to the exit code: port, loading, signals, drain (server.md
// §2.8, §4).
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "http/http_server.h"
#include "server/load_model.h"
#include "server/service.h"

namespace halfbyte {

struct ServeOptions {
  HttpOptions http;
  ServedModelOptions load;
  ServiceOptions service;
  std::vector<std::string> api_keys;
  std::filesystem::path api_key_file;
  std::chrono::duration<double> shutdown_timeout{30};
};

// Combinations that cannot work, each in one sentence that names the flags.
std::vector<std::string> Contradictions(const ServeOptions& options);

// Exit codes.
enum class ServeEnd {
  kDone = 0,      // told to end, and everything had finished
  kModel = 3,     // the model directory is unreadable or unsupported
  kMemory = 4,    // memory, threads or device
  kBind = 5,      // address, key file or number of open files
  kDrainCut = 6,  // told to end, and not everything had finished in time
  kEngine = 7,    // the engine failed
};

struct ServeResult {
  ServeEnd end = ServeEnd::kDone;
  std::string message;  // what went wrong, if something did
};

// Serves until SIGTERM or SIGINT (a second one ends at once), or until the engine fails. SIGHUP
// reads the key file again, SIGUSR1 logs the state of scheduler and pools. Prints "halfbyte ready
// http://127.0.0.1:8000" on stdout when the model is loaded; everything else goes to the log. To be
// called from the main thread while there is no other.
ServeResult Serve(const ServeOptions& options);

}  // namespace halfbyte
