#include "server/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "server/load_model.h"
#include "server/version.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kWholeFile = uintmax_t{16} << 20;

// FNV-1a, with the length of each piece, so that pieces do not run into each other.
class Hash {
 public:
  void Add(std::string_view piece) {
    for (const char c : piece) Byte(static_cast<uint8_t>(c));
    for (size_t rest = piece.size(), i = 0; i < sizeof(rest); ++i, rest >>= 8) {
      Byte(static_cast<uint8_t>(rest));
    }
  }
  std::string Hex() const { return fmt::format("{:012x}", (hash_ ^ (hash_ >> 48)) & kMask); }

 private:
  static constexpr uint64_t kMask = (uint64_t{1} << 48) - 1;
  void Byte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace

Result<std::string> SystemFingerprint(const ServedModelOptions& options) {
  Hash hash;
  hash.Add(ProgramVersion());
  hash.Add(ProgramCommit());
  const TransformerOptions& model = options.transformer;
  hash.Add(options.fake ? "fake" : model.gpu ? "cuda" : "cpu");
  hash.Add(fmt::format(
      "{} {} {} {}", static_cast<int>(model.math), static_cast<int>(model.arithmetic),
      static_cast<int>(model.activation_scales.source), model.activation_scales.headroom));
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(options.directory, error)) {
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    const uintmax_t size = fs::file_size(file, error);
    hash.Add(file.filename().string());
    if (error || size > kWholeFile || file.extension() == ".safetensors") {
      hash.Add(std::to_string(size));
      continue;
    }
    HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
    hash.Add(text);
  }
  return "hb-" + hash.Hex();
}

}  // namespace halfbyte
