// The web page (page.html) as part of the program: embed_page.py writes it.
#pragma once

#include <string_view>

namespace halfbyte {

extern const std::string_view kPage;
extern const std::string_view kPageSecurityPolicy;  // of Content-Security-Policy

}  // namespace halfbyte
