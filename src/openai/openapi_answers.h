// JSON schemas of the answers, for /openapi.json. Text, as answers are written as text: the tests
// in tests/serve hold every answer against them.
#pragma once

#include <string_view>

namespace halfbyte {

// The "schemas" of the document's components.
inline constexpr std::string_view kAnswerSchemas = R"json({
  "Error": {
    "type": "object", "required": ["error"],
    "properties": {"error": {
      "type": "object", "required": ["message", "type", "param", "code"],
      "properties": {
        "message": {"type": "string"},
        "type": {"enum": ["invalid_request_error", "authentication_error", "rate_limit_error",
                          "server_error"]},
        "param": {"type": ["string", "null"], "description": "Path of the field at fault"},
        "code": {"type": "string"}}}}},
  "Usage": {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details",
                 "completion_tokens_details"],
    "properties": {
      "prompt_tokens": {"type": "integer", "minimum": 0},
      "completion_tokens": {"type": "integer", "minimum": 0},
      "total_tokens": {"type": "integer", "minimum": 0},
      "prompt_tokens_details": {
        "type": "object", "required": ["cached_tokens"],
        "properties": {"cached_tokens": {"type": "integer", "minimum": 0}}},
      "completion_tokens_details": {
        "type": "object", "required": ["reasoning_tokens"],
        "properties": {"reasoning_tokens": {"type": "integer", "minimum": 0}}}}},
  "TokenIds": {"type": "array", "items": {"type": "integer", "minimum": 0}},
  "StopReason": {"type": ["string", "integer", "null"],
                 "description": "The stop string or the id of stop_token_ids that ended the text"},
  "CompletionLogprobs": {
    "type": ["object", "null"],
    "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"],
    "properties": {
      "tokens": {"type": "array", "items": {"type": "string"}},
      "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
      "top_logprobs": {"type": "array", "items": {
        "type": ["object", "null"], "additionalProperties": {"type": "number"}}},
      "text_offset": {"type": "array", "items": {"type": "integer", "minimum": 0}}}},
  "TokenLogprob": {
    "type": "object", "required": ["token", "logprob", "bytes"],
    "properties": {
      "token": {"type": "string"},
      "logprob": {"type": "number"},
      "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
      "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}}},
  "ChatLogprobs": {
    "type": ["object", "null"], "required": ["content", "reasoning_content", "refusal"],
    "properties": {
      "content": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}},
      "reasoning_content": {"type": "array",
                            "items": {"$ref": "#/components/schemas/TokenLogprob"}},
      "refusal": {"type": "null"}}},
  "Answer": {
    "type": "object",
    "required": ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"],
    "properties": {
      "id": {"type": "string"}, "created": {"type": "integer"}, "model": {"type": "string"},
      "system_fingerprint": {"type": "string"}, "choices": {"type": "array", "minItems": 1},
      "usage": {"$ref": "#/components/schemas/Usage"}}},
  "Choice": {
    "type": "object", "required": ["index", "logprobs", "finish_reason", "stop_reason"],
    "properties": {
      "index": {"type": "integer", "minimum": 0},
      "finish_reason": {"enum": ["stop", "length"]},
      "stop_reason": {"$ref": "#/components/schemas/StopReason"},
      "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
      "token_ids": {"$ref": "#/components/schemas/TokenIds"}}},
  "Completion": {
    "allOf": [{"$ref": "#/components/schemas/Answer"}],
    "properties": {
      "object": {"const": "text_completion"},
      "choices": {"items": {
        "allOf": [{"$ref": "#/components/schemas/Choice"}], "required": ["text"],
        "properties": {
          "text": {"type": "string"},
          "logprobs": {"$ref": "#/components/schemas/CompletionLogprobs"}}}}}},
  "ChatCompletion": {
    "allOf": [{"$ref": "#/components/schemas/Answer"}],
    "properties": {
      "object": {"const": "chat.completion"},
      "choices": {"items": {
        "allOf": [{"$ref": "#/components/schemas/Choice"}], "required": ["message"],
        "properties": {
          "message": {
            "type": "object", "required": ["role", "content", "refusal"],
            "properties": {
              "role": {"const": "assistant"}, "content": {"type": "string"},
              "reasoning_content": {"type": ["string", "null"]},
              "reasoning": {"type": ["string", "null"]}, "refusal": {"type": "null"}}},
          "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"}}}}}},
  "Event": {
    "type": "object", "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A chunk as JSON, at last [DONE]"}}},
  "Tokens": {
    "type": "object", "required": ["count", "max_model_len", "tokens"],
    "properties": {
      "count": {"type": "integer", "minimum": 0}, "max_model_len": {"type": "integer"},
      "tokens": {"$ref": "#/components/schemas/TokenIds"},
      "token_strs": {"type": "array", "items": {"type": "string"}}}},
  "TokenizerInfo": {
    "type": "object", "required": ["bos_token", "eos_token", "pad_token", "chat_template"],
    "properties": {
      "tokenizer_class": {"type": "string"}, "model_max_length": {"type": "integer"},
      "bos_token": {"type": ["string", "null"]}, "eos_token": {"type": ["string", "null"]},
      "pad_token": {"type": ["string", "null"]}, "chat_template": {"type": ["string", "null"]}}},
  "Text": {"type": "object", "required": ["prompt"],
           "properties": {"prompt": {"type": "string"}}},
  "Rendered": {
    "type": "object",
    "required": ["prompt", "prompt_token_ids", "count", "stop_token_ids", "sampling", "thinking"],
    "properties": {
      "prompt": {"anyOf": [{"type": "string"},
                           {"type": "array", "items": {"type": "string"}}]},
      "prompt_token_ids": {"anyOf": [
        {"$ref": "#/components/schemas/TokenIds"},
        {"type": "array", "items": {"$ref": "#/components/schemas/TokenIds"}}]},
      "count": {"type": "integer", "minimum": 1},
      "stop_token_ids": {"$ref": "#/components/schemas/TokenIds"},
      "sampling": {"type": "object"},
      "thinking": {
        "type": ["object", "null"], "required": ["mode", "effort_requested", "effort_used"],
        "properties": {
          "mode": {"enum": ["on", "off"]}, "effort_requested": {"type": ["string", "null"]},
          "effort_used": {"enum": ["low", "high", "max", null]}}}}},
  "Model": {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "max_model_len", "halfbyte"],
    "properties": {
      "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
      "owned_by": {"type": "string"}, "max_model_len": {"type": ["integer", "null"]},
      "halfbyte": {
        "type": "object", "required": ["precision", "kv_cache_dtype", "thinking"],
        "properties": {
          "precision": {"type": ["string", "null"]},
          "kv_cache_dtype": {"type": ["string", "null"]}, "thinking": {"type": "boolean"}}}}},
  "Models": {
    "type": "object", "required": ["object", "data"],
    "properties": {
      "object": {"const": "list"},
      "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
  "Status": {
    "type": "object", "required": ["status"],
    "properties": {
      "status": {"enum": ["alive", "dead", "ready", "loading", "draining", "failed"]},
      "phase": {"type": "string"}, "progress": {"type": "number", "minimum": 0, "maximum": 1},
      "eta_s": {"type": "number"}}},
  "Version": {
    "type": "object", "required": ["version", "commit", "device"],
    "properties": {"version": {"type": "string"}, "commit": {"type": "string"},
                   "device": {"type": "string"}}}
})json";

}  // namespace halfbyte
