// What a conversion will do, decided from headers and scalar scales before a byte is written: for
// each shard of the source one shard of the result under the same file name, its tensors, and the
// jobs that fill them.
//
// To nvfp4 / nvfp4-ct: the routed experts of the main layers (and, if asked, the shared ones) are
// quantized; tensors that are NVFP4 in the other convention are rewrapped wherever they stand.
// To bf16: every quantized matrix of the checkpoint is dequantized, draft stages included. Experts
// with Hugging Face names become one tensor of a layer, which is how transformers reads them.
// Everything else is copied. Tensors keep the naming style of the source; a name that only some
// tool writes becomes the style's own. In an nvfp4-ct result, what stays FP8 or MXFP4 gets the
// names and scale types of compressed-tensors, since config.json can name one convention only.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_checkpoint.h"
#include "checkpoint/safetensors_writer.h"

namespace halfbyte {

enum class TargetFormat : uint8_t {
  kModelOptNvfp4,  // "nvfp4": weight, weight_scale, weight_scale_2 (multiplier), input_scale
  kCtNvfp4,        // "nvfp4-ct": weight_packed, weight_scale, weight_global_scale (divisor), ...
  kBf16
};
enum class ConvertScope : uint8_t { kExperts, kExpertsAndShared };

const char* TargetFormatName(TargetFormat format);  // as on the command line
const char* ConvertScopeName(ConvertScope scope);

enum class ConvertAction : uint8_t {
  kQuantize,    // decode, quantize to NVFP4
  kLossless,    // MXFP4: codes stay, scales are rewritten as NVFP4 (nvfp4.md §4.1)
  kRewrap,      // NVFP4: codes and block scales stay, global scales change convention
  kDequantize,  // decode, round to BF16
  kFuse,        // unquantized expert: rounded to BF16 if it isn't, into the tensor of all experts
};
inline constexpr int kConvertActions = static_cast<int>(ConvertAction::kFuse) + 1;

constexpr bool MakesNvfp4(ConvertAction action) {
  return action != ConvertAction::kDequantize && action != ConvertAction::kFuse;
}
const char* ConvertActionName(ConvertAction action);  // "quantized", "lossless", ...

// One matrix of the result. Its tensors stand one after the other in ShardPlan::outputs from
// `first_output`: kBf16 [weight]; NVFP4 [codes, block scales, global scale, input scale if any].
// Experts that are fused share one tensor, each at an offset.
struct MatrixPlan {
  ModuleKey key;     // experts one by one, whether or not the source has them fused
  std::string name;  // of the result's tensor with the elements, or of its part
  NamingStyle style = NamingStyle::kOfficial;
  StoredFormat from = StoredFormat::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t source_bytes = 0;
  bool has_input_scale = false;
  size_t first_output = 0;
  int64_t output_offset = 0;  // bytes, within the tensor
};

// Matrices that one thread converts together: gate and up of an expert, or a single matrix.
struct MatrixJob {
  ConvertAction action = ConvertAction::kQuantize;
  std::vector<MatrixPlan> matrices;
  // All matrices that share the global scale; more than `matrices` if a partner lies in another
  // shard.
  std::vector<ModuleKey> scale_group;
  int64_t source_offset = 0;  // in its shard, for reading in order
};

struct CopyJob {
  const CheckpointTensor* source = nullptr;  // the checkpoint's
  size_t output = 0;                         // in ShardPlan::outputs
  bool e8m0_to_f32 = false;                  // scales; otherwise the bytes stay
};

struct ShardPlan {
  std::string file;  // path within the checkpoint's directory, of the source and of the result
  std::vector<TensorSpec> outputs;
  std::vector<MatrixJob> matrices;
  std::vector<CopyJob> copies;

  int64_t source_bytes() const;  // that the jobs read
};

// How the matrices of one module are stored in the result, for the quantization section of
// config.json. The routed experts of a layer count as one module, stored as most of them are; those
// that differ are modules of their own.
enum class ResultEncoding : uint8_t { kPlain, kFp8, kMxfp4, kNvfp4 };
struct ResultModule {
  std::string name;  // "layers.3.attn.wq_a", "layers.3.ffn.experts"
  ResultEncoding encoding = ResultEncoding::kPlain;
  bool routed_experts = false;
  bool has_input_scale = false;
  // What shares a scale in kFp8: rows x columns, 0 standing for all of them.
  int64_t scale_rows = 0;
  int64_t scale_columns = 0;
  bool exact = false;  // others that differ in numbers only are stored otherwise

  friend auto operator<=>(const ResultModule&, const ResultModule&) = default;
};

// A matrix in scope that stays as it is, and why.
struct KeptMatrix {
  std::string name;
  std::string reason;
};

struct ConversionPlan {
  TargetFormat format = TargetFormat::kModelOptNvfp4;
  std::vector<ShardPlan> shards;  // without those that end up empty
  std::vector<KeptMatrix> kept;
  std::set<ResultModule> modules;

  int64_t source_bytes() const;
  int64_t output_bytes() const;  // of all tensors
};

// Errors: a matrix of the scope whose siblings or scalars are wrong; gate and up in different
// formats; nothing to convert.
Result<ConversionPlan> PlanConversion(const ModelCheckpoint& model, TargetFormat format,
                                      ConvertScope scope);

}  // namespace halfbyte
