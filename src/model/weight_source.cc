#include "model/weight_source.h"

#include "checkpoint/inventory.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

Result<StoredWeight> WeightSource::Matrix(const ModuleKey& key) const {
  HB_ASSIGN_OR_RETURN(StoredWeight stored, Stored(key));
  const Shape shape = *ExpectedShape(config(), key);
  if (stored.matrix.rows != shape[0] || stored.matrix.columns != shape[1]) {
    return MakeError("{}: shape [{}, {}] where config.json makes it [{}, {}]", stored.name,
                     stored.matrix.rows, stored.matrix.columns, shape[0], shape[1]);
  }
  return stored;
}

Result<std::vector<float>> WeightSource::Vector(const ModuleKey& key) const {
  return Vector(key, ElementCount(*ExpectedShape(config(), key)));
}

}  // namespace halfbyte
