// Values of a bench as its report gives them.
#pragma once

#include "base/json.h"

namespace halfbyte {

inline double Giga(double value) { return value / 1e9; }

// null for what was not measured.
inline Json OrNull(double value) { return value > 0 ? Json(value) : Json(); }

}  // namespace halfbyte
