// Runs five tokens through one mixture-of-experts layer of a checkpoint and prints what comes out.
//
//   moe_c MODEL_DIR [LAYER [ARITHMETIC]]       moe_c models/tiny-v4-nvfp4 0 w4a16
#include <halfbyte/moe.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 5 };

static void Check(int code) {
  if (code == HALFBYTE_MOE_OK) return;
  fprintf(stderr, "moe_c: %s\n", halfbyte_moe_last_error());
  exit(1);
}

static void* Allocate(size_t count, size_t size) {
  void* memory = calloc(count, size);
  if (memory == NULL) exit(1);
  return memory;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: moe_c MODEL_DIR [LAYER [ARITHMETIC]]\n");
    return 2;
  }
  halfbyte_moe_options options = HALFBYTE_MOE_INIT(halfbyte_moe_options);
  if (argc > 3) options.arithmetic = argv[3];
  halfbyte_moe_layer* layer = NULL;
  Check(halfbyte_moe_layer_open(argv[1], argc > 2 ? atoi(argv[2]) : 0, &options, &layer));
  halfbyte_moe_workspace* workspace = NULL;
  Check(halfbyte_moe_workspace_create(layer, kTokens, &workspace));
  halfbyte_moe_info info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
  Check(halfbyte_moe_layer_describe(layer, &info));

  // In a model the hidden rows come from attention, and the logits are their product with the
  // router's weight. Here both are small made-up numbers.
  const size_t hidden_count = (size_t)(kTokens * info.hidden);
  const size_t choice_count = (size_t)(kTokens * info.top_k);
  float* hidden = Allocate(hidden_count, sizeof(float));
  float* out = Allocate(hidden_count, sizeof(float));
  float* logits = Allocate((size_t)(kTokens * info.experts), sizeof(float));
  int32_t* ids = Allocate(choice_count, sizeof(int32_t));
  float* weights = Allocate(choice_count, sizeof(float));
  for (size_t i = 0; i < hidden_count; ++i) hidden[i] = (float)(i % 31) / 16 - 1;
  for (int64_t i = 0; i < kTokens * info.experts; ++i) logits[i] = (float)(i * 7 % 23) / 8;
  const int32_t token_ids[kTokens] = {0, 1, 2, 3, 4};  // some layers route by them

  halfbyte_moe_route_arguments route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  route.tokens = kTokens;
  route.logits = logits;
  route.token_ids = token_ids;
  route.topk_ids = ids;
  route.topk_weights = weights;
  Check(halfbyte_moe_route(layer, workspace, &route));

  halfbyte_moe_run_arguments run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
  run.tokens = kTokens;
  run.top_k = info.top_k;
  run.hidden = hidden;
  run.hidden_type = HALFBYTE_MOE_F32_ROWS;
  run.topk_ids = ids;
  run.topk_weights = weights;
  run.out = out;
  run.out_type = HALFBYTE_MOE_F32_ROWS;
  Check(halfbyte_moe_run(layer, workspace, &run));

  for (int64_t t = 0; t < kTokens; ++t) {
    printf("token %d, experts", (int)t);
    for (int64_t j = 0; j < info.top_k; ++j) printf(" %d", (int)ids[t * info.top_k + j]);
    printf(":");
    for (int64_t n = 0; n < 4; ++n) printf(" %.6g", (double)out[t * info.hidden + n]);
    printf(" ...\n");
  }
  free(weights);
  free(ids);
  free(logits);
  free(out);
  free(hidden);
  halfbyte_moe_workspace_destroy(workspace);
  halfbyte_moe_layer_destroy(layer);
  return 0;
}
