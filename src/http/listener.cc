#include "http/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "http/client_socket.h"

namespace halfbyte {
namespace {

sockaddr_storage AddressOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

uint16_t PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

void SetPort(sockaddr_storage& address, uint16_t port) {
  if (address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  }
}

std::string UrlOf(int socket) {
  const sockaddr_storage address = AddressOf(socket);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return fmt::format("http://{}:{}", text.data(), PortOf(address));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return fmt::format("http://[{}]:{}", text.data(), PortOf(address));
}

// -1: errno says why.
int Listen(const sockaddr* address, socklen_t size) {
  const int socket = ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const int yes = 1;  // a port that was in use a moment ago may be used again
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (address->sa_family != AF_UNIX) SetOptionsOfClients(socket);
  if (::bind(socket, address, size) == 0 && ::listen(socket, SOMAXCONN) == 0) return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

// Removes a socket that somebody of this user has left behind. Error: something else is there.
Status RemoveLeftSocket(const sockaddr_un& address) {
  const char* path = address.sun_path;
  struct stat there {};
  if (::lstat(path, &there) != 0) return {};
  if (!S_ISSOCK(there.st_mode)) {
    return MakeError("--uds {}: there is something else than a socket; choose another path", path);
  }
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int connected =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const bool nobody = connected != 0 && errno == ECONNREFUSED;
  ::close(probe);
  if (!nobody) return MakeError("--uds {}: somebody serves there; choose another path", path);
  if (there.st_uid != ::geteuid()) {
    return MakeError("--uds {}: a socket of another user is there; choose another path", path);
  }
  ::unlink(path);
  return {};
}

// Until it is closed, no other server that starts replaces sockets in the folder of `path`. A
// folder that cannot be locked matters only if two start at the same moment, so nobody waits long
// for it.
int LockFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < 100 && fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fd;
}

Result<Listener> BindUnixSocket(const sockaddr_un& address) {
  HB_RETURN_IF_ERROR(RemoveLeftSocket(address));
  const int socket = Listen(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (socket < 0) {
    return MakeError("--uds {}: {}; choose another path", address.sun_path, std::strerror(errno));
  }
  return Listener(socket, fmt::format("unix:{}", address.sun_path));
}

}  // namespace

Listener::~Listener() {
  if (socket_ >= 0) ::close(socket_);
}
uint16_t Listener::port() const { return PortOf(AddressOf(socket_)); }
int Listener::family() const { return AddressOf(socket_).ss_family; }

Result<std::vector<Listener>> ListenOnTcp(const std::string& host, uint16_t port) {
  const addrinfo hints{.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return MakeError("--host {}: {}; give an address of this machine, such as 127.0.0.1", host,
                     ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  std::vector<Listener> listeners;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, entry->ai_addr, entry->ai_addrlen);
    SetPort(address, port);
    const int socket = Listen(reinterpret_cast<const sockaddr*>(&address), entry->ai_addrlen);
    if (socket < 0) {
      return MakeError("--host {} --port {}: {}; choose another one, or --port 0 for any", host,
                       port, std::strerror(errno));
    }
    listeners.emplace_back(socket, UrlOf(socket));
    port = listeners.back().port();
  }
  return listeners;
}

Result<Listener> ListenOnUnixSocket(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path.size() >= sizeof(address.sun_path)) {
    return MakeError("--uds {}: longer than the {} bytes that the path of a socket can have", path,
                     sizeof(address.sun_path) - 1);
  }
  path.copy(address.sun_path, path.size());
  const int lock = LockFolderOf(path);
  auto listener = BindUnixSocket(address);
  if (lock >= 0) ::close(lock);
  return listener;
}

}  // namespace halfbyte
