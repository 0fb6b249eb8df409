// The bundled model's tokenizer as a served model, for the tests of this room.
#pragma once

#include "openai/api.h"
#include "text/text_test_tokenizer.h"

namespace halfbyte {

inline ModelInfo TestModel() {
  ModelInfo model;
  model.served_names = {"tiny", "alias"};
  model.created = 1700000000;
  model.tokenizer = &TestTokenizer();
  model.max_model_len = 1000;
  model.vocabulary = TestTokenizer().vocab_size();
  model.eos_ids = {1};
  model.system_fingerprint = "hb-0123456789ab";
  model.precision = "nvfp4";
  model.kv_cache_dtype = "fp8";
  return model;
}

// It behind the interface, with default options.
inline const OpenAiApi& TestApi() {
  static const OpenAiApi api(TestModel(), {});
  return api;
}

}  // namespace halfbyte
