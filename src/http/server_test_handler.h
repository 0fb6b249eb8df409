// A handler for tests of the transport: what it answers, the test decides.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "http/http_server.h"

namespace halfbyte {

// True as soon as `condition` is; false after ten seconds.
template <class Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The test's end of a running reply.
class Stream {
 public:
  explicit Stream(Wake wake) : wake_(std::move(wake)) {}

  void Send(std::string bytes) { Put(std::move(bytes), false); }
  void Finish(std::string bytes = "") { Put(std::move(bytes), true); }
  bool alive() const { return alive_; }  // the server holds its reply
  int polls() const { return polls_; }

 private:
  friend class StreamReply;
  void Put(std::string bytes, bool done) {
    {
      const std::lock_guard lock(mutex_);
      bytes_ += bytes;
      done_ = done;
    }
    wake_();
  }

  const Wake wake_;
  std::atomic<bool> alive_{true};
  std::atomic<int> polls_{0};
  std::mutex mutex_;
  std::string bytes_;
  bool done_ = false;
};

class StreamReply : public HttpReply {
 public:
  explicit StreamReply(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~StreamReply() override { stream_->alive_ = false; }
  Output Poll() override {
    ++stream_->polls_;
    const std::lock_guard lock(stream_->mutex_);
    Output output{.bytes = std::exchange(stream_->bytes_, ""), .done = stream_->done_};
    if (!started_ && (output.done || !output.bytes.empty())) {
      output.head = HttpHead{.fields = {{"Content-Type", "text/plain"}}};
      started_ = true;
    }
    return output;
  }

 private:
  const std::shared_ptr<Stream> stream_;
  bool started_ = false;
};

// /hello, /echo, /keep (keeps the request), /large (1 MiB), /stream (the test sends), /refused (401
// by its head), and more.
class TestHandler : public HttpHandler {
 public:
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override {
    ++heads;
    if (head.path != "/refused") return std::nullopt;
    return HttpResponse{
        .head = {.status = 401}, .body = "no key\n", .not_before = refused_not_before};
  }

  std::unique_ptr<HttpReply> Handle(HttpRequest request, Wake wake) override {
    ++handled;
    EXPECT_FALSE(request.id.empty());
    EXPECT_FALSE(request.peer.empty());
    if (request.path == "/stream") {
      const std::lock_guard lock(mutex_);
      streams_.push_back(std::make_shared<Stream>(std::move(wake)));
      return std::make_unique<StreamReply>(streams_.back());
    }
    HttpResponse response{.head = {.fields = {{"Content-Type", "text/plain"}}}};
    if (request.path == "/echo") response.body = request.body;
    if (request.path == "/keep") {
      const std::lock_guard lock(mutex_);
      kept_.push_back(std::move(request));
      return ReplyWith(std::move(response));
    }
    if (request.path == "/large") response.body.assign(1 << 20, 'L');
    if (request.path == "/hello") response.body = "hello\n";
    if (request.path == "/closing") response.head.close = true;
    if (request.path == "/empty") response.head.status = 204;
    if (request.path == "/injected") response.head.fields.Add("X-Said", "a\r\nX-Evil: b");
    return ReplyWith(std::move(response));
  }

  HttpResponse Answer(const HttpFault& fault, const HttpRequest& request) override {
    EXPECT_FALSE(request.id.empty());
    return {.head = {.status = fault.status}, .body = fault.code};
  }

  // The i-th one that was asked for, waiting for that.
  std::shared_ptr<Stream> stream(size_t i) {
    std::shared_ptr<Stream> found;
    EXPECT_TRUE(Eventually([&] {
      const std::lock_guard lock(mutex_);
      if (i < streams_.size()) found = streams_[i];
      return found != nullptr;
    }));
    return found;
  }
  size_t streams_alive() {
    const std::lock_guard lock(mutex_);
    size_t alive = 0;
    for (const auto& stream : streams_) alive += stream->alive() ? 1 : 0;
    return alive;
  }

  void ForgetKept() {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }

  std::atomic<int> heads{0}, handled{0};
  std::chrono::steady_clock::time_point refused_not_before;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::vector<HttpRequest> kept_;
};

class HttpServerTest : public testing::Test {
 protected:
  // Any port; `change` may set options.
  template <class Change>
  void Start(const Change& change) {
    HttpOptions options{.port = 0};
    change(options);
    auto started = HttpServer::Start(options, &handler);
    ASSERT_TRUE(started) << started.error().message;
    server = *std::move(started);
  }
  void Start() {
    Start([](HttpOptions&) {});
  }
  bool NobodyIsConnected() {
    return Eventually([&] { return server->connections() == 0; });
  }

  TestHandler handler;
  std::unique_ptr<HttpServer> server;
};

}  // namespace halfbyte
