#include "http/io_thread.h"

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>

#include "http/connection.h"

namespace halfbyte {

IoThread::IoThread(std::chrono::milliseconds tick)
    : work_(context_.get_executor()), tick_(tick), timer_(context_) {
  wakes_ =
      std::make_shared<WakeQueue>([this] { asio::post(context_, [this] { DeliverWakes(); }); });
  UpdateDate();
  asio::co_spawn(context_, Tick(), EndProgramIfThrown);
  thread_ = std::thread([this] {
    while (!context_.stopped()) UnlessMemoryIsShort([this] { context_.run(); });
  });
}

IoThread::~IoThread() {
  if (thread_.joinable()) Join();
}

void IoThread::Join() {
  asio::post(context_, [this] {
    work_.reset();
    timer_.cancel();
  });
  thread_.join();
  wakes_->Close();
}

Task<void> IoThread::Tick() {
  while (work_.owns_work()) {
    boost::system::error_code cancelled;
    try {
      timer_.expires_after(tick_);
      co_await timer_.async_wait(asio::redirect_error(kAwait, cancelled));
      UpdateDate();
    } catch (const std::bad_alloc&) {  // comes round again
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto now = std::chrono::steady_clock::now();
    for (const auto& connection : connections_) connection->OnTick(now);
  }
}

void IoThread::DeliverWakes() {
  for (const auto& target : wakes_->Take()) {
    if (target->connection != nullptr) target->connection->OnWake();
  }
}

void IoThread::UpdateDate() {
  const std::time_t now = std::time(nullptr);
  if (now == date_second_) return;
  date_second_ = now;
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 40> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  date_.assign(text.data(), size);
}

}  // namespace halfbyte
