// Which names a client may call the server by. A page of a stranger whose own name is made to lead
// to this machine (DNS rebinding) is, to a browser, a page of this server: no CORS applies to it.
// But its requests carry that name in the field Host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halfbyte {

class AllowedHosts {
 public:
  // `names`: "llm.example.com"; ".example.com", that and all names below it; "*", any.
  explicit AllowedHosts(std::vector<std::string> names);

  // Whether `host`, the value of a field Host, is an IP address (nobody can make one lead
  // elsewhere), localhost, a name below it, or one of the names. The port does not matter.
  bool Admit(std::string_view host) const;

  // "--allowed-hosts NAME ..." if that cannot be a name of a host; else empty.
  static std::string Fault(std::string_view name);

 private:
  std::vector<std::string> names_;  // in small letters
};

}  // namespace halfbyte
