// One expert in NVFP4 in device memory, as stored, before a family of GPUs packs it its own way.
#pragma once

#include <cstdint>

namespace halfbyte {

// codes [rows, k / 2], block scales [rows, k / 16] of 0x00..0x7e, linear. 8-byte aligned.
struct UploadedMatrix {
  const uint8_t* codes = nullptr;
  const uint8_t* block_scales = nullptr;
};
struct UploadedExpert {
  UploadedMatrix gate;  // [intermediate, hidden]
  UploadedMatrix up;    // [intermediate, hidden]
  UploadedMatrix down;  // [hidden, intermediate]
};

}  // namespace halfbyte
