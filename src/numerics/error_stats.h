// How far a quantized tensor is from its reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace halfbyte {

struct ErrorStats {
  int64_t count = 0;
  double signal = 0;         // sum of reference^2
  double noise = 0;          // sum of (value - reference)^2
  double max_abs_error = 0;  // NaN differences count as infinite
  int64_t worst_index = -1;  // where max_abs_error was met first
  float worst_value = 0;
  float worst_reference = 0;

  void Add(int64_t index, float value, float reference) {
    ++count;
    double error = std::abs(double{value} - double{reference});
    if (value == reference || (std::isnan(value) && std::isnan(reference))) error = 0;
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (!std::isnan(reference)) signal += double{reference} * double{reference};
    noise += error * error;
    if (worst_index < 0 || error > max_abs_error) {
      max_abs_error = error;
      worst_index = index;
      worst_value = value;
      worst_reference = reference;
    }
  }

  // Joins the statistics of two disjoint pieces.
  void Merge(const ErrorStats& other) {
    count += other.count;
    signal += other.signal;
    noise += other.noise;
    if (other.worst_index >= 0 && (worst_index < 0 || other.max_abs_error > max_abs_error)) {
      max_abs_error = other.max_abs_error;
      worst_index = other.worst_index;
      worst_value = other.worst_value;
      worst_reference = other.worst_reference;
    }
  }

  bool exact() const { return noise == 0; }
  // Signal to quantization-noise ratio in dB; infinity if exact.
  double sqnr_db() const {
    return exact() ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
  }
  // Root of noise / signal; 0 if exact.
  double relative_l2() const { return exact() ? 0 : std::sqrt(noise / signal); }
};

}  // namespace halfbyte
