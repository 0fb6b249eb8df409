#include "loadgen/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

namespace halfbyte {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

// Reads up to a line that says where the server listens; empty: the output ended before.
std::string ReadReadyUrl(int fd) {
  constexpr std::string_view kReady = "halfbyte ready ";
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1) {
    if (c != '\n') {
      line += c;
    } else if (line.starts_with(kReady)) {
      return line.substr(kReady.size());
    } else {
      line.clear();
    }
  }
  return "";
}

std::string DescribeEnd(int status) {
  if (WIFSIGNALED(status)) return fmt::format("by signal {}", WTERMSIG(status));
  return fmt::format("with exit code {}", WEXITSTATUS(status));
}

}  // namespace

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), address_(std::move(other.address_)) {}

ServerProcess::~ServerProcess() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Result<ServerProcess> ServerProcess::Start(const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>("halfbyte")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return MakeError("no pipe: {}", std::strerror(errno));
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // however we end, it does not stay
    dup2(output[1], STDOUT_FILENO);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(output[1]);
  if (pid < 0) {
    close(output[0]);
    return MakeError("no process: {}", std::strerror(errno));
  }
  ServerProcess server(pid);
  const std::string url = ReadReadyUrl(output[0]);
  close(output[0]);
  if (url.empty()) {
    int status = 0;
    waitpid(std::exchange(server.pid_, 0), &status, 0);
    return MakeError("the server ended {} before it was ready", DescribeEnd(status));
  }
  HB_ASSIGN_OR_RETURN(server.address_, ServerAddress::OfUrl(url));
  return server;
}

Status ServerProcess::Stop() {
  kill(pid_, SIGTERM);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      return MakeError("the server did not end within {} s after SIGTERM", kPatience.count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  pid_ = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return MakeError("the server ended {} after SIGTERM", DescribeEnd(status));
}

}  // namespace halfbyte
