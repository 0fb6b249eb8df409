// One thread that runs an event loop and the connections pinned to it: all that happens to a
// connection happens here, so connections need no locks. Internal to src/http: it includes Asio.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <ctime>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>

#include "http/wake_queue.h"

namespace halfbyte {

namespace asio = boost::asio;
using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, Executor>;
using Timer = asio::steady_timer::rebind_executor<Executor>::other;
template <class T>
using Task = asio::awaitable<T, Executor>;
inline constexpr asio::use_awaitable_t<Executor> kAwait;
// Completes a coroutine. None of ours, and no handler, throws, but where memory is short: then what
// the coroutine did is given up.
inline void EndProgramIfThrown(const std::exception_ptr& thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
  }
}

// Runs work that comes round again. Where memory is short it waits for others to give some back.
template <class Work>
void UnlessMemoryIsShort(const Work& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class IoThread {
 public:
  // Connections hear the time every `tick`.
  explicit IoThread(std::chrono::milliseconds tick);
  ~IoThread();  // as Join, unless that was called

  asio::io_context& context() { return context_; }
  // From another thread: ends with the last connection. Wakes do nothing afterwards.
  void Join();

  // On this thread:
  void Add(std::shared_ptr<Connection> connection) { connections_.insert(std::move(connection)); }
  void Remove(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }
  const auto& connections() const { return connections_; }
  WakeQueue& wakes() { return *wakes_; }
  // Polls the replies that were woken. Before new requests are looked at, of which there may be
  // many: what runs comes first.
  void DeliverWakes();
  std::string_view date() const { return date_; }  // "Sun, 06 Nov 1994 08:49:37 GMT"

 private:
  Task<void> Tick();
  void UpdateDate();

  asio::io_context context_{1};
  asio::executor_work_guard<Executor> work_;
  const std::chrono::milliseconds tick_;
  Timer timer_;
  std::shared_ptr<WakeQueue> wakes_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::time_t date_second_ = 0;
  std::string date_;
  std::thread thread_;
};

}  // namespace halfbyte
