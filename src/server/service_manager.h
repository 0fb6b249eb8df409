// What a service manager such as systemd wants to know (sd_notify(3), Type=notify).
#pragma once

#include <string_view>

namespace halfbyte {

// Sends "READY=1", "STOPPING=1", ... to the socket that the environment variable NOTIFY_SOCKET
// names (a path, or an abstract name that begins with @); does nothing without one. Never waits.
void NotifyServiceManager(std::string_view state);

}  // namespace halfbyte
