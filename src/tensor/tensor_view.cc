#include "tensor/tensor_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace halfbyte {

std::string ShapeString(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace halfbyte
