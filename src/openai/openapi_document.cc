// OpenApiDocument of api.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "openai/api.h"
#include "openai/field_table.h"
#include "openai/openapi_answers.h"

namespace halfbyte {
namespace {

using Document = nlohmann::ordered_json;

Document Reference(std::string_view schema) {
  return {{"$ref", fmt::format("#/components/schemas/{}", schema)}};
}

Document Content(std::string_view type, Document schema) {
  return {{std::string(type), {{"schema", std::move(schema)}}}};
}

Document JsonResponse(std::string_view about, std::string_view schema) {
  return {{"description", about}, {"content", Content("application/json", Reference(schema))}};
}

Document TextResponse(std::string_view about, std::string_view type) {
  return {{"description", about}, {"content", Content(type, {{"type", "string"}})}};
}

void AddErrors(Document& responses, std::initializer_list<int> statuses) {
  for (const int status : statuses) {
    std::string_view about = "Refused; the error says why";
    if (status == 401) about = "No valid key";
    if (status == 403) about = "Not by that name of a host";
    if (status == 404) about = "No such route or model";
    if (status == 429) about = "Too much waits; Retry-After says when to try again";
    if (status >= 500) about = "The server cannot answer";
    responses[std::to_string(status)] = JsonResponse(about, "Error");
  }
}

// What the transport may say to any request, and the check of keys.
void AddCommonErrors(Document& responses) {
  AddErrors(responses, {400, 401, 403, 404, 405, 408, 413, 414, 415, 431, 503});
}

Document Get(std::string_view about, Document ok) {
  Document responses = {{"200", std::move(ok)}};
  AddCommonErrors(responses);
  return {{"get", {{"summary", about}, {"responses", std::move(responses)}}}};
}

// Without keys; 503 is an answer, not an error.
Document Probe(std::string_view about, std::string_view no) {
  Document get = Get(about, JsonResponse("Yes", "Status"));
  get["get"]["responses"]["503"] = JsonResponse(no, "Status");
  get["get"]["security"] = Document::array();
  return get;
}

Document Post(std::string_view about, Document schema, Document ok) {
  Document responses = {{"200", std::move(ok)}};
  AddCommonErrors(responses);
  return {{"post",
           {{"summary", about},
            {"requestBody",
             {{"required", true}, {"content", Content("application/json", std::move(schema))}}},
            {"responses", std::move(responses)}}}};
}

Document Generate(std::string_view about, Document schema, std::string_view answer,
                  int overload_status) {
  Document ok = JsonResponse("The answer; with stream, chunks as server-sent events", answer);
  ok["content"].update(Content("text/event-stream", Reference("Event")));
  Document post = Post(about, std::move(schema), std::move(ok));
  AddErrors(post["post"]["responses"], {overload_status, 500, 504});
  return post;
}

Document Either(std::string_view first, std::string_view second) {
  return {{"anyOf", {Reference(first), Reference(second)}}};
}

// Which models there are is no matter of form: another one is a 404. But who writes requests from
// the document wants to be served.
void NameModels(Document& schema, std::span<const std::string> served_names) {
  Document& names = schema["properties"]["model"]["enum"] = Document::array({nullptr});
  for (const std::string& name : served_names) names.push_back(name);
}

// What one field asks of another, which the table does not know.
constexpr char kStreamOptions[] = R"json([
  {"required": ["stream"], "properties": {"stream": {"const": true}}},
  {"properties": {"stream_options": {"type": "null"}}}
])json";
constexpr char kContent[] = R"json([
  {"properties": {"role": {"const": "assistant"}}},
  {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}}
])json";

// Bodies that work, for who reads and who generates.
constexpr char kCompletionExamples[] = R"json([
  {"prompt": "The number of", "max_tokens": 8, "n": 2, "seed": 7, "logprobs": 2},
  {"prompt": ["One", "Two"], "stop": "\n", "stream": true,
   "stream_options": {"include_usage": true}}
])json";
constexpr char kChatExamples[] = R"json([
  {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0,
   "logprobs": true, "top_logprobs": 2},
  {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
   "thinking": {"type": "enabled"}, "max_completion_tokens": 20, "stream": true}
])json";

void AddConditions(Document& schemas) {
  for (const char* request : {"CompletionRequest", "ChatRequest"}) {
    schemas[request]["anyOf"] = Document::parse(kStreamOptions);
  }
  for (const char* request : {"ChatRequest", "TokenizeChat"}) {
    schemas[request]["properties"]["messages"]["items"]["anyOf"] = Document::parse(kContent);
  }
  schemas["CompletionRequest"]["examples"] = Document::parse(kCompletionExamples);
  schemas["ChatRequest"]["examples"] = Document::parse(kChatExamples);
}

Document Schemas(const FieldTable& table, std::span<const std::string> served_names) {
  Document schemas = Document::parse(kAnswerSchemas);
  schemas["CompletionRequest"] = SchemaOf(table.completions());
  schemas["ChatRequest"] = SchemaOf(table.chat());
  schemas["TokenizeText"] = SchemaOf(table.tokenize_text());
  schemas["TokenizeChat"] = SchemaOf(table.tokenize_chat());
  schemas["DetokenizeRequest"] = SchemaOf(table.detokenize());
  for (const char* request :
       {"CompletionRequest", "ChatRequest", "TokenizeText", "TokenizeChat", "DetokenizeRequest"}) {
    NameModels(schemas[request], served_names);
  }
  AddConditions(schemas);
  return schemas;
}

Document Paths(int overload_status) {
  Document paths;
  paths["/v1/completions"] =
      Generate("Continue texts", Reference("CompletionRequest"), "Completion", overload_status);
  paths["/v1/chat/completions"] = Generate("Answer a conversation", Reference("ChatRequest"),
                                           "ChatCompletion", overload_status);
  paths["/tokenize"] =
      Post("Text or a conversation as token ids", Either("TokenizeChat", "TokenizeText"),
           JsonResponse("The ids", "Tokens"));
  paths["/detokenize"] =
      Post("Token ids as text", Reference("DetokenizeRequest"), JsonResponse("The text", "Text"));
  paths["/tokenizer_info"] =
      Get("Control tokens of the tokenizer", JsonResponse("Their texts", "TokenizerInfo"));
  const Document rendered = JsonResponse("Everything resolved", "Rendered");
  paths["/render"] =
      Post("What a call would run", Either("ChatRequest", "CompletionRequest"), rendered);
  paths["/v1/completions/render"] =
      Post("What a call would run", Reference("CompletionRequest"), rendered);
  paths["/v1/chat/completions/render"] =
      Post("What a call would run", Reference("ChatRequest"), rendered);
  paths["/v1/models"] = Get("The served names", JsonResponse("The names", "Models"));
  paths["/v1/models/{id}"] = Get("One served name", JsonResponse("The model", "Model"));
  paths["/v1/models/{id}"]["parameters"] = Document::array(
      {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  paths["/live"] = Probe("Whether the server works", "It stands still or has failed");
  paths["/ready"] = Probe("Whether it takes requests", "It loads, drains or has failed");
  paths["/health"] = Probe("As /ready", "It loads, drains or has failed");
  paths["/metrics"] = Get("Prometheus metrics", TextResponse("The metrics", "text/plain"));
  paths["/version"] = Get("What runs", JsonResponse("Version, commit and device", "Version"));
  paths["/openapi.json"] =
      Get("This document", {{"description", "OpenAPI 3.1"},
                            {"content", Content("application/json", {{"type", "object"}})}});
  paths["/"] = Get("A page to try the model", TextResponse("The page", "text/html"));
  return paths;
}

}  // namespace

std::string OpenApiDocument(const ApiOptions& options, std::span<const std::string> served_names,
                            int overload_status) {
  const FieldTable table(options);
  Document document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "halfbyte"},
        {"version", "1"},
        {"description",
         "Completions and chat over the OpenAI interface. Null is absent. Names "
         "that no schema here has are dropped and named in x-halfbyte-ignored."}}},
      {"paths", Paths(overload_status)},
      {"components",
       {{"schemas", Schemas(table, served_names)},
        {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
      {"security", {{{"key", Document::array()}}, Document::object()}},
  };
  return document.dump();
}

}  // namespace halfbyte
