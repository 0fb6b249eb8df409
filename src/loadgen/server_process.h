// A server of our own in a process of its own: `halfbyte serve` on a free port of this machine.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "loadgen/server_address.h"

namespace halfbyte {

class ServerProcess {
 public:
  // Runs this program again with `arguments` ("serve", "DIR", ...) and waits for its line
  // "halfbyte ready URL". What it logs goes to stderr.
  // Errors: it ends before that line.
  static Result<ServerProcess> Start(const std::vector<std::string>& arguments);
  // Kills what still runs.
  ~ServerProcess();
  ServerProcess(ServerProcess&& other) noexcept;
  ServerProcess& operator=(ServerProcess&&) = delete;

  const ServerAddress& address() const { return address_; }
  // Asks it to end (SIGTERM) and waits. An error if it does not end with exit code 0 within a
  // minute.
  Status Stop();

 private:
  explicit ServerProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_;  // 0: has ended
  ServerAddress address_;
};

}  // namespace halfbyte
