// A model's checkpoint by meaning: config + tensors, looked up by ModuleKey whatever the naming
// style, the storage format, and whether experts are fused.
//
//   HB_ASSIGN_OR_RETURN(const ModelCheckpoint model, ModelCheckpoint::Open(dir));
//   const ModelConfig& config = model.config();
//   HB_ASSIGN_OR_RETURN(StoredWeight wq_a, model.FindWeight(ModuleKey::Layer(3, Module::kQA)));
//   const ModuleKey expert = ModuleKey::Layer(3, Module::kExpertGate, 7);
//   HB_ASSIGN_OR_RETURN(StoredWeight w1, model.FindWeight(expert));
//   const ModuleKey q_norm = ModuleKey::Layer(3, Module::kQNorm);
//   HB_ASSIGN_OR_RETURN(CheckpointTensor norm, model.FindTensor(q_norm));
//   TensorView view = norm.View();
#pragma once

#include <filesystem>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"
#include "checkpoint/model_config.h"
#include "checkpoint/stored_weight.h"
#include "checkpoint/tensor_name.h"

namespace halfbyte {

class ModelCheckpoint {
 public:
  // Fails before anything is loaded, listing what is missing, duplicated, of a wrong shape or
  // contradictory. Everything RequiredModules asks for is there afterwards, with matching shapes.
  // Draft stages are optional. Unknown and stale tensors are logged as warnings.
  static Result<ModelCheckpoint> Open(const std::filesystem::path& directory);

  // For inspect and verify: opens what can be opened; a file that cannot be read is one finding.
  // Without a usable config.json, has_config() is
  // false and nothing is compared with it.
  static Result<ModelCheckpoint> OpenWithFindings(const std::filesystem::path& directory,
                                                  Findings& findings);

  bool has_config() const { return config_.has_value(); }
  const ModelConfig& config() const { return *config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // The style of most names; what a converter should write.
  NamingStyle style() const { return style_; }

  // Whether the module is stored, by itself or inside a fused expert tensor.
  bool Has(const ModuleKey& key) const;

  // Whether some of it is, or may be, in a file that cannot be read, or under names that one
  // finding explained: then nothing else about it is worth a finding. Only OpenWithFindings opens
  // such a model.
  bool Unread(const ModuleKey& key) const;

  // A matrix [out, in] in its stored format. Routed experts are asked for one by one: with fused
  // tensors the result is the expert's slice. Errors: absent, siblings or shapes wrong, scalar
  // scale unusable; all name the tensor.
  Result<StoredWeight> FindWeight(const ModuleKey& key) const;

  // A tensor as stored: norms, hyper-connection parameters, sinks, position biases, router bias
  // (F32, BF16 or F16), tid2eid (I64 or I32); also any unquantized matrix. Errors: absent,
  // quantized, or shape other than the config's.
  Result<CheckpointTensor> FindTensor(const ModuleKey& key) const;

  // All stored modules and their parts, for tools. Fused tensors appear under their own keys.
  const std::unordered_map<ModuleKey, ModuleTensors>& modules() const { return modules_; }
  // Tensors whose names no table knows.
  const std::vector<CheckpointTensor>& unknown() const { return unknown_; }

 private:
  explicit ModelCheckpoint(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void IndexNames(Findings& findings);
  void ReportUnknownNames(Findings& findings);
  const ModuleTensors* Stored(const ModuleKey& key) const;

  Checkpoint checkpoint_;
  std::optional<ModelConfig> config_;
  NamingStyle style_ = NamingStyle::kOfficial;
  std::unordered_map<ModuleKey, ModuleTensors> modules_;
  std::vector<CheckpointTensor> unknown_;
  std::unordered_set<ModuleKey> unread_;
  bool foreign_names_ = false;   // most names are in no table
  bool packed_experts_ = false;  // quantized and joined: not read
};

// Compares what is stored with what the config asks for, from headers alone: missing, surplus,
// wrong shapes, inconsistent siblings, input scales that some experts of a layer lack.
void CheckInventory(const ModelCheckpoint& model, Findings& findings);

}  // namespace halfbyte
