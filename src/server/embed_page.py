"""Writes page.cc: the web page as a constant, and a content security policy for it.

    embed_page.py page.html page.cc

The policy allows what the page brings along (by the hashes of its one script and one style) and
requests to its own server; nothing else.
"""
import base64
import hashlib
import pathlib
import re
import sys

MAX_BYTES = 64 << 10


def sources(kind, html):
    """The policy's sources for the elements of one kind."""
    bodies = re.findall(rf"<{kind}>(.*?)</{kind}>", html, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
              for body in bodies]
    return " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"


def main():
    page, out = map(pathlib.Path, sys.argv[1:])
    html = page.read_text(encoding="utf-8")
    data = html.encode()
    if len(data) > MAX_BYTES:
        sys.exit(f"{page}: {len(data)} bytes; the page may have {MAX_BYTES}")
    policy = "; ".join([
        "default-src 'none'", "connect-src 'self'", "img-src data:",
        f"script-src {sources('script', html)}", f"style-src {sources('style', html)}",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"])
    array = ",".join(str(byte) for byte in data)
    out.write_text(
        '#include "server/page.h"\n\nnamespace halfbyte {\nnamespace {\n\n'
        f"constexpr unsigned char kBytes[] = {{{array}}};\n\n}}  // namespace\n\n"
        "const std::string_view kPage(reinterpret_cast<const char*>(kBytes), sizeof(kBytes));\n"
        f'const std::string_view kPageSecurityPolicy = "{policy}";\n\n'
        "}  // namespace halfbyte\n")


main()
