// A client of a Service without sockets: calls it as the transport would.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "http/http.h"

namespace halfbyte::test {

inline std::string FieldOf(const HttpHead& head, std::string_view name) {
  return std::string(head.fields.Find(name).value_or(""));
}

inline HttpRequest Get(std::string path, HttpFields fields = {}) {
  return {.method = "GET",
          .path = std::move(path),
          .fields = std::move(fields),
          .id = "test",
          .arrival = std::chrono::steady_clock::now()};
}

inline HttpRequest Post(std::string path, std::string body, HttpFields fields = {}) {
  HttpRequest request = Get(std::move(path), std::move(fields));
  request.method = "POST";
  request.fields.Add("Content-Type", "application/json");
  request.has_body = true;
  request.body = std::move(body);
  return request;
}

// One exchange, poll by poll.
class Exchange {
 public:
  Exchange(HttpHandler& handler, HttpRequest request) {
    HttpRequest head = request;
    head.body.clear();
    if (auto refusal = handler.CheckHead(head)) {
      head_ = std::move(refusal->head);
      body_ = std::move(refusal->body);
      done_ = true;
      return;
    }
    reply_ = handler.Handle(std::move(request), Wake([signal = signal_] { signal->Raise(); }));
    Poll();
  }

  // Until the answer is complete, or `enough` says so. False after ten seconds.
  template <class Enough>
  bool RunUntil(Enough enough) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done_ && !enough()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      signal_->Wait();
      Poll();
    }
    return true;
  }
  bool Run() {
    return RunUntil([] { return false; });
  }

  void Poll() {
    HttpReply::Output output = reply_->Poll();
    if (output.head) head_ = std::move(*output.head);
    body_ += output.bytes;
    done_ = output.done;
  }
  void Leave() { reply_.reset(); }

  bool done() const { return done_; }
  int status() const { return head_ ? head_->status : 0; }  // 0: no head so far
  std::string field(std::string_view name) const { return head_ ? FieldOf(*head_, name) : ""; }
  bool closes() const { return head_ && head_->close; }
  const std::string& body() const { return body_; }

 private:
  struct Signal {
    void Raise() {
      const std::lock_guard lock(mutex);
      raised = true;
      changed.notify_all();
    }
    void Wait() {  // a little, so that polls by the clock happen too
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::chrono::milliseconds(20), [this] { return raised; });
      raised = false;
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool raised = false;
  };

  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  std::unique_ptr<HttpReply> reply_;
  std::optional<HttpHead> head_;
  std::string body_;
  bool done_ = false;
};

}  // namespace halfbyte::test
