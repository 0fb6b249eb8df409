// What the transport asks of and sets on a client's socket beside reading and writing.
#pragma once

#include <string>

namespace halfbyte {

// For a TCP socket that is about to listen: those of its clients inherit what is set here (tcp(7)).
// No delay of small pieces, a bounded send buffer, and probes that find clients whose machine has
// gone within two minutes, also while nothing is sent. Unix sockets keep the system's defaults:
// their send buffer is bounded by net.core.wmem_default and does not grow.
void SetOptionsOfClients(int listening);

std::string PeerName(int socket);  // "127.0.0.1:50412", "[::1]:50412", "unix"

// Sends "100 Continue", which a client may wait for before it sends a body. False: the connection
// is of no use any more.
bool InviteBody(int socket);

// Has the client closed or half-closed, behind whatever it sent before?
bool HasHungUp(int socket);

}  // namespace halfbyte
