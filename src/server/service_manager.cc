#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace halfbyte {

void NotifyServiceManager(std::string_view state) {
  const char* name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr) return;
  const std::string_view path = name;
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path.size() < 2 || path.size() >= sizeof(address.sun_path)) {
    spdlog::warn("NOTIFY_SOCKET is {}; it must be a path or @name of at most {} bytes", path,
                 sizeof(address.sun_path) - 1);
    return;
  }
  path.copy(address.sun_path, path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const ssize_t sent = ::sendto(socket, state.data(), state.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), size);
  if (sent < 0) spdlog::warn("NOTIFY_SOCKET {}: {}", path, std::strerror(errno));
  if (socket >= 0) ::close(socket);
}

}  // namespace halfbyte
