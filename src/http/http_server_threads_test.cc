// Clients that leave, and the server that stops, while replies run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <memory>
#include <random>
#include <sstream>
#include <string>

#include "http/raw_client.h"
#include "http/server_test_handler.h"

namespace halfbyte {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kStream = "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n";
constexpr const char* kHello = "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n";

using HttpServerThreads = HttpServerTest;

TEST_F(HttpServerThreads, AClientThatLeavesInAnyWayEndsItsReplyAtOnce) {
  Start();
  void (*const leave[])(RawClient&) = {[](RawClient& client) { client.Close(); },
                                       [](RawClient& client) { client.HalfClose(); },
                                       [](RawClient& client) { client.Reset(); }};
  size_t i = 0;
  for (const auto way : leave) {
    for (const bool after_output : {false, true}) {
      RawClient client(server->port());
      client.Send(kStream);
      const auto stream = handler.stream(i++);
      if (after_output) {
        stream->Send("begun");
        EXPECT_TRUE(client.ReadHead());
      }
      EXPECT_TRUE(stream->alive());
      way(client);
      EXPECT_TRUE(Eventually([&] { return !stream->alive(); }));
      EXPECT_TRUE(NobodyIsConnected());
      stream->Finish("too late");  // does nothing
    }
  }
}

TEST_F(HttpServerThreads, AClientThatLeavesBehindManyEarlyBytesIsNoticed) {
  Start([](HttpOptions& o) { o.poll_interval = milliseconds(20); });
  RawClient client(server->port());
  client.Send(kStream);
  const auto stream = handler.stream(0);
  client.Send(std::string(100'000, 'e'));
  client.HalfClose();
  EXPECT_TRUE(Eventually([&] { return !stream->alive(); }));
}

TEST_F(HttpServerThreads, WhoOnlyStopsSendingGetsAnAnswerThatWasComplete) {
  Start();
  RawClient client(server->port(), /*receive_buffer=*/8192);
  client.Send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
  client.HalfClose();
  const auto answer = client.Read();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body.size(), size_t{1} << 20);
  EXPECT_TRUE(NobodyIsConnected());
}

TEST_F(HttpServerThreads, ClientsThatLeaveInTheMiddleOfARequestLeaveNothing) {
  Start();
  const std::string request = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
  for (size_t size = 0; size < request.size(); ++size) {
    RawClient closes(server->port()), stops(server->port()), resets(server->port());
    for (RawClient* client : {&closes, &stops, &resets}) client->Send(request.substr(0, size));
    closes.Close();
    resets.Reset();
    stops.HalfClose();
    const auto answer = stops.Read();
    EXPECT_EQ(answer.has_value(), size > 0);
    if (answer) {
      EXPECT_EQ(answer->status, 400);
    }
  }
  EXPECT_TRUE(NobodyIsConnected());
  EXPECT_EQ(handler.handled, 0);
}

TEST_F(HttpServerThreads, AClientThatTakesNothingIsLeft) {
  Start([](HttpOptions& o) { o.write_timeout = milliseconds(100); });
  RawClient client(server->port(), /*receive_buffer=*/8192);
  client.Send(kStream);
  const auto stream = handler.stream(0);
  stream->Send(std::string(4 << 20, 'x'));
  EXPECT_TRUE(Eventually([&] { return !stream->alive(); }));
  EXPECT_TRUE(NobodyIsConnected());
}

TEST_F(HttpServerThreads, AThousandClientsThatLeaveAtRandomDisturbNobody) {
  Start([](HttpOptions& o) {
    o.io_threads = 2;
    o.poll_interval = milliseconds(20);
  });
  RawClient steady(server->port());
  steady.Send(kStream);
  const auto stream = handler.stream(0);
  stream->Send("0");
  ASSERT_TRUE(steady.ReadHead());
  ASSERT_EQ(steady.ReadChunk(), "0");

  constexpr int kClients = 1000, kThreads = 4;
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = next++; i < kClients; i = next++) {
        std::mt19937 random(static_cast<uint32_t>(i));
        RawClient client(server->port());
        const std::string all = std::string(kHello) + kStream + kHello;
        client.Send(all.substr(0, random() % (all.size() + 1)));
        if (random() % 4 == 0) std::this_thread::sleep_for(milliseconds(random() % 5));
        if (random() % 3 == 0) client.HalfClose();
        if (random() % 3 == 0) client.Reset();
      }
    });
  }
  for (int i = 1; i <= 200; ++i) {
    stream->Send(std::to_string(i));
    EXPECT_EQ(steady.ReadChunk(), std::to_string(i));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return server->connections() == 1; }));
  EXPECT_TRUE(Eventually([&] { return handler.streams_alive() == 1; }));
  stream->Finish();
  EXPECT_EQ(steady.ReadChunk(), "");
}

TEST_F(HttpServerThreads, ManyStreamsAreFedFromManyThreads) {
  Start([](HttpOptions& o) { o.io_threads = 2; });
  constexpr size_t kStreams = 64;
  constexpr int kParts = 100;
  std::vector<RawClient> clients;
  std::vector<std::shared_ptr<Stream>> streams;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.emplace_back(server->port());
    clients.back().Send(kStream);
    streams.push_back(handler.stream(i));
  }
  std::vector<std::thread> feeders;
  for (size_t f = 0; f < 4; ++f) {
    feeders.emplace_back([&, f] {
      for (int part = 0; part < kParts; ++part) {
        for (size_t i = f; i < kStreams; i += 4) streams[i]->Send(std::to_string(part) + ",");
      }
      for (size_t i = f; i < kStreams; i += 4) streams[i]->Finish();
    });
  }
  std::string expected;
  for (int part = 0; part < kParts; ++part) expected += std::to_string(part) + ",";
  for (RawClient& client : clients) EXPECT_EQ(client.Read()->body, expected);
  for (std::thread& feeder : feeders) feeder.join();
  EXPECT_EQ(handler.streams_alive(), 0u);
}

TEST_F(HttpServerThreads, StopLetsRunningRepliesEnd) {
  Start();
  RawClient idle(server->port()), half(server->port()), client(server->port());
  EXPECT_TRUE(idle.Ask(kHello));
  half.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo");
  client.Send(kStream);
  const auto stream = handler.stream(0);
  stream->Send("a");
  EXPECT_TRUE(client.ReadHead());
  std::atomic<int64_t> aborted = -1;
  std::thread stopper(
      [&] { aborted = server->Stop(steady_clock::now() + std::chrono::minutes(1)); });
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_TRUE(half.AtEnd());
  EXPECT_TRUE(stream->alive());
  stream->Finish("b");
  EXPECT_EQ(client.ReadChunk(), "a");
  EXPECT_EQ(client.ReadChunk(), "b");
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_TRUE(client.AtEnd());
  stopper.join();
  EXPECT_EQ(aborted, 0);
  EXPECT_FALSE(RawClient(server->port()).connected());
}

TEST_F(HttpServerThreads, StopDestroysWhatIsLeftAtItsDeadline) {
  Start([](HttpOptions& o) { o.io_threads = 2; });
  std::vector<RawClient> clients;
  for (size_t i = 0; i < 10; ++i) {
    clients.emplace_back(server->port());
    clients.back().Send(kStream);
    handler.stream(i)->Send("a");
  }
  for (RawClient& client : clients) EXPECT_TRUE(client.ReadHead());
  EXPECT_EQ(server->Stop(steady_clock::now() + milliseconds(20)), 10);
  EXPECT_EQ(handler.streams_alive(), 0u);
  for (RawClient& client : clients) {
    EXPECT_EQ(client.ReadChunk(), "a");
    EXPECT_EQ(client.ReadChunk(), std::nullopt) << "cut, not ended";
  }
  handler.stream(0)->Send("after the end");
  server.reset();
  handler.stream(0)->Send("and after that");
}

TEST_F(HttpServerThreads, RunningOutOfFilesIsSurvivedAndToldOnce) {
  std::ostringstream log;
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  Start();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{.rlim_cur = 200, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  std::vector<int> fillers;
  for (int fd = ::open("/dev/null", O_RDONLY); fd >= 0; fd = ::open("/dev/null", O_RDONLY)) {
    fillers.push_back(fd);
  }
  ASSERT_GT(fillers.size(), 2u);
  ::close(fillers.back());  // for the client; the server finds none
  RawClient client(server->port());
  EXPECT_TRUE(client.connected());
  client.Send(kHello);
  std::this_thread::sleep_for(milliseconds(350));  // some tries
  EXPECT_EQ(server->connections(), 0);
  fillers.pop_back();
  for (const int fd : fillers) ::close(fd);
  ::setrlimit(RLIMIT_NOFILE, &before);
  const auto answer = client.Read();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  server.reset();
  spdlog::set_default_logger(logger);
  const std::string told = log.str();
  const size_t first = told.find("cannot accept a connection: Too many open files");
  EXPECT_NE(first, std::string::npos) << told;
  EXPECT_EQ(told.find("cannot accept", first + 1), std::string::npos) << told;
}

}  // namespace
}  // namespace halfbyte
