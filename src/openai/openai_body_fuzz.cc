// Any bytes as the body of any route: an error that can be written down, or a call that the engine
// takes and whose answer is valid JSON. The first byte picks the route. Seeds:
// tests/data/fuzz/openai_body.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "engine/engine_loop.h"
#include "engine/mailbox.h"
#include "openai/answer.h"
#include "openai/api.h"
#include "openai/openai_test_model.h"
#include "text/utf8.h"

namespace halfbyte {
namespace {

const OpenAiApi& Api() {
  static const OpenAiApi api(TestModel(), {});
  return api;
}

void CheckJson(const std::string& text) {
  HB_CHECK(IsValidUtf8(text) && nlohmann::json::accept(text), "not JSON: {}", text);
}

void CheckError(const ApiError& error) {
  HB_CHECK(error.status == 400 || error.status == 404, "status {}", error.status);
  HB_CHECK(!error.code.empty() && !error.message.empty(), "an error says nothing");
  CheckJson(error.Json());
}

void CheckJsonAnswer(const ApiResult<JsonAnswer>& answer) {
  answer ? CheckJson(answer->body) : CheckError(answer.error());
}

// An answer of one token to each choice.
void CheckAnswer(const GenerationCall& call) {
  Answer answer(Api().model(), call, "id", 0);
  std::string stream;
  for (const Request& request : call.requests) {
    for (int32_t j = 0; j < request.n; ++j) {
      OutputEvent event{.choice = request.first_choice + j, .content = "a", .token_ids = {46}};
      if (request.logprobs) event.content_logprobs = {{.chosen = {46, -1}, .top = {{7, -0.5}}}};
      event.finish = Finish{};
      if (call.form.stream) {
        stream += answer.Stream({std::move(event)});
      } else {
        answer.Add({std::move(event)});
      }
    }
  }
  HB_CHECK(answer.finished() && !answer.error(), "the answer has no end");
  if (call.form.stream) {
    HB_CHECK(IsValidUtf8(stream) && stream.ends_with("data: [DONE]\n\n"), "{}", stream);
  } else {
    CheckJson(answer.Body());
  }
}

void CheckCall(ApiResult<GenerationCall> call) {
  if (!call) return CheckError(call.error());
  const ExecutorLimits limits{.max_model_len = Api().model().max_model_len,
                              .vocabulary = Api().model().vocabulary};
  for (Request& request : call->requests) {
    request.mailbox = std::make_shared<Mailbox>();
    const auto refusal = Check(request, limits, &TestTokenizer());
    HB_CHECK(!refusal, "the engine refuses what the interface took: {}", refusal->message);
  }
  for (const std::string& name : call->ignored) {
    HB_CHECK(name.find_first_of("\r\n") == std::string::npos, "unfit for a header: {}", name);
  }
  CheckAnswer(*call);
}

}  // namespace
}  // namespace halfbyte

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using halfbyte::Api;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      halfbyte::CheckCall(Api().ParseCompletions(body));
      break;
    case 1:
      halfbyte::CheckCall(Api().ParseChat(body));
      break;
    case 2:
      halfbyte::CheckJsonAnswer(Api().Tokenize(body));
      break;
    case 3:
      halfbyte::CheckJsonAnswer(Api().Detokenize(body));
      break;
    default:
      halfbyte::CheckJsonAnswer(Api().Render(body));
  }
  return 0;
}
