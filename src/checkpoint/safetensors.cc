#include "checkpoint/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/check.h"

namespace halfbyte {
namespace {

namespace dom = simdjson::dom;

// Why one entry of the header cannot be believed.
tl::unexpected<Error> Refuse(std::string_view source, std::string_view tensor,
                             const std::string& why) {
  return MakeError("{}: tensor {}: {}", source, tensor, why);
}

Result<int64_t> NonNegative(dom::element value, std::string_view source, std::string_view tensor,
                            std::string_view what) {
  int64_t number = 0;
  if (value.get(number) != simdjson::SUCCESS) {
    return Refuse(source, tensor, fmt::format("{} must hold integers", what));
  }
  if (number < 0) return Refuse(source, tensor, fmt::format("{} {} is negative", what, number));
  return number;
}

Result<Shape> ReadShape(dom::element value, std::string_view source, std::string_view tensor) {
  dom::array dims;
  if (value.get(dims) != simdjson::SUCCESS) {
    return Refuse(source, tensor, "shape is not an array");
  }
  Shape shape;
  for (const dom::element dim : dims) {
    HB_ASSIGN_OR_RETURN(const int64_t number, NonNegative(dim, source, tensor, "shape"));
    shape.push_back(number);
  }
  return shape;
}

// The two numbers of data_offsets, relative to the end of the header.
Result<std::pair<int64_t, int64_t>> ReadOffsets(dom::element value, std::string_view source,
                                                std::string_view tensor) {
  dom::array pair;
  if (value.get(pair) != simdjson::SUCCESS || pair.size() != 2) {
    return Refuse(source, tensor, "data_offsets must be two integers");
  }
  HB_ASSIGN_OR_RETURN(const int64_t begin,
                      NonNegative(pair.at(0).value_unsafe(), source, tensor, "data_offsets"));
  HB_ASSIGN_OR_RETURN(const int64_t end,
                      NonNegative(pair.at(1).value_unsafe(), source, tensor, "data_offsets"));
  if (begin > end) {
    return Refuse(source, tensor, fmt::format("data_offsets [{}, {}] are reversed", begin, end));
  }
  return std::pair{begin, end};
}

// shape x dtype in bits, or nothing if that does not fit 63 bits.
std::optional<int64_t> BitsOf(const Shape& shape, DType dtype) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t size = DTypeBits(dtype);
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(size, dim, &size)) return std::nullopt;
  }
  return size;
}

// Why its bytes are not those of its dtype and shape; empty if they are.
std::string SizeProblem(const TensorInfo& info) {
  const std::optional<int64_t> bits = BitsOf(info.shape, info.dtype);
  if (!bits) return "overflows";
  if (*bits % 8 != 0) return fmt::format("ends within a byte ({} bits)", *bits);
  return *bits / 8 == info.bytes ? "" : fmt::format("takes {} bytes", *bits / 8);
}

Result<TensorInfo> ReadEntry(std::string_view name, dom::element value, int64_t data_begin,
                             std::string_view source) {
  dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS) return Refuse(source, name, "not a JSON object");
  std::optional<dom::element> dtype_field, shape_field, offsets_field;
  for (const auto [key, field] : fields) {
    auto* target = key == "dtype"          ? &dtype_field
                   : key == "shape"        ? &shape_field
                   : key == "data_offsets" ? &offsets_field
                                           : nullptr;
    if (target == nullptr) return Refuse(source, name, fmt::format("unknown field {}", key));
    if (target->has_value()) return Refuse(source, name, fmt::format("field {} twice", key));
    *target = field;
  }
  if (!dtype_field || !shape_field || !offsets_field) {
    return Refuse(source, name, "needs dtype, shape and data_offsets");
  }
  std::string_view dtype_name;
  if (dtype_field->get(dtype_name) != simdjson::SUCCESS) {
    return Refuse(source, name, "dtype is not a string");
  }
  TensorInfo info;
  info.name = name;
  info.dtype = DTypeFromName(dtype_name).value_or(DType::kUnknown);
  if (info.dtype == DType::kUnknown) info.unknown_dtype = dtype_name;
  HB_ASSIGN_OR_RETURN(info.shape, ReadShape(*shape_field, source, name));
  HB_ASSIGN_OR_RETURN(const auto offsets, ReadOffsets(*offsets_field, source, name));
  const auto [begin, end] = offsets;
  info.bytes = end - begin;
  if (info.dtype != DType::kUnknown) {
    if (const std::string problem = SizeProblem(info); !problem.empty()) {
      return Refuse(source, name,
                    fmt::format("{} {} {}, but data_offsets [{}, {}] hold {} bytes", dtype_name,
                                ShapeString(info.shape), problem, begin, end, info.bytes));
    }
  }
  if (end > std::numeric_limits<int64_t>::max() - data_begin) {
    return Refuse(source, name, fmt::format("data_offsets [{}, {}] overflow", begin, end));
  }
  info.offset = data_begin + begin;
  return info;
}

// Sorts by offset and makes sure that the tensors cover the data section exactly once.
Status CheckCoverage(std::vector<TensorInfo>& tensors, int64_t data_begin, int64_t file_size,
                     std::string_view source) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  int64_t expected = data_begin;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset < expected) {
      return Refuse(source, tensor.name,
                    fmt::format("overlaps tensor {}", previous != nullptr ? previous->name : "?"));
    }
    if (tensor.offset > expected) {
      return Refuse(source, tensor.name,
                    fmt::format("a hole of {} bytes before it", tensor.offset - expected));
    }
    expected = tensor.offset + tensor.bytes;
    previous = &tensor;
  }
  if (file_size < expected) {
    return MakeError(
        "{}: truncated: the header describes {} bytes, but the file has {}: {} are missing (fetch "
        "the file again)",
        source, expected, file_size, expected - file_size);
  }
  if (file_size > expected) {
    return MakeError("{}: the header describes {} bytes, but the file has {}: {} too many", source,
                     expected, file_size, file_size - expected);
  }
  return {};
}

Result<std::pair<std::string, std::string>> ReadMetadata(std::string_view key, dom::element value,
                                                         std::string_view source) {
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return MakeError("{}: __metadata__ field {} is not a string", source, key);
  }
  return std::pair{std::string(key), std::string(text)};
}

Status ReadAllMetadata(dom::element value, std::string_view source, SafetensorsHeader& header) {
  dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS) {
    return MakeError("{}: __metadata__ is not a JSON object", source);
  }
  std::unordered_set<std::string_view> seen;
  for (const auto [key, text] : fields) {
    if (!seen.insert(key).second) {
      return MakeError("{}: __metadata__ field {} appears twice", source, key);
    }
    HB_ASSIGN_OR_RETURN(auto entry, ReadMetadata(key, text, source));
    header.metadata.push_back(std::move(entry));
  }
  return {};
}

// The length field, checked against the file and against what `start` really holds.
Result<int64_t> ReadHeaderLength(std::span<const std::byte> start, int64_t file_size,
                                 std::string_view source) {
  if (file_size < kSafetensorsLengthField ||
      start.size() < static_cast<size_t>(kSafetensorsLengthField)) {
    return MakeError("{}: {} bytes, too short for a safetensors file", source, file_size);
  }
  uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof(length));
  if (length > static_cast<uint64_t>(file_size - kSafetensorsLengthField)) {
    return MakeError("{}: header length {} is beyond the file's {} bytes", source, length,
                     file_size);
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return MakeError("{}: header length {} is above the limit of {}", source, length,
                     kMaxSafetensorsHeader);
  }
  if (length < 2) return MakeError("{}: header length {} holds no JSON object", source, length);
  if (static_cast<uint64_t>(kSafetensorsLengthField) + length > start.size()) {
    return MakeError("{}: the header is cut off", source);
  }
  return static_cast<int64_t>(length);
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> start,
                                                 int64_t file_size, std::string_view source) {
  HB_ASSIGN_OR_RETURN(const int64_t length, ReadHeaderLength(start, file_size, source));
  // simdjson reads beyond the end of its input, so it gets a padded copy.
  const simdjson::padded_string text(
      reinterpret_cast<const char*>(start.data()) + kSafetensorsLengthField,
      static_cast<size_t>(length));
  if (text.data()[0] != '{') {
    return MakeError("{}: the header is not a JSON object (is this a safetensors file?)", source);
  }
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(text).get(root); error != simdjson::SUCCESS) {
    return MakeError("{}: the header is not valid JSON: {}", source,
                     simdjson::error_message(error));
  }
  dom::object entries;
  if (root.get(entries) != simdjson::SUCCESS) {
    return MakeError("{}: the header is not a JSON object", source);
  }
  SafetensorsHeader header;
  header.tensors.reserve(entries.size());
  std::unordered_set<std::string_view> names;
  names.reserve(entries.size());
  const int64_t data_begin = kSafetensorsLengthField + length;
  for (const auto [name, value] : entries) {
    if (!names.insert(name).second) return Refuse(source, name, "the name appears twice");
    if (name == "__metadata__") {
      HB_RETURN_IF_ERROR(ReadAllMetadata(value, source, header));
      continue;
    }
    HB_ASSIGN_OR_RETURN(TensorInfo info, ReadEntry(name, value, data_begin, source));
    header.tensors.push_back(std::move(info));
  }
  HB_RETURN_IF_ERROR(CheckCoverage(header.tensors, data_begin, file_size, source));
  return header;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  HB_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  HB_ASSIGN_OR_RETURN(SafetensorsHeader header,
                      ParseSafetensorsHeader(
                          file.bytes(), static_cast<int64_t>(file.bytes().size()), path.string()));
  return SafetensorsFile(std::move(file), std::move(header));
}

std::span<const std::byte> SafetensorsFile::Bytes(const TensorInfo& info) const {
  return file_.bytes().subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.bytes));
}

TensorView SafetensorsFile::View(const TensorInfo& info) const {
  return {info.dtype, info.shape, Bytes(info)};
}

void SafetensorsFile::DropPages(std::span<const std::byte> bytes) const {
  if (bytes.empty()) return;
  const std::byte* begin = file_.bytes().data();
  HB_CHECK(bytes.data() >= begin && bytes.data() + bytes.size() <= begin + file_.bytes().size(),
           "{} bytes outside {}", bytes.size(), path().string());
  file_.DropPages(static_cast<size_t>(bytes.data() - begin), bytes.size());
}

}  // namespace halfbyte
